#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// Remaining outputs, in the tiling that suits most shapes.
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::bf16, true, Tiling::pingpong_128x128>(const ScaledCall&);
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::f32, false, Tiling::pingpong_128x128>(const ScaledCall&);

}  // namespace halftone::gemm
