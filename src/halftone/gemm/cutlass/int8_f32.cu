#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// wgrad with fp32 output.
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::f32, true, Tiling::pingpong_128x128>(const ScaledCall&);
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::f32, true, Tiling::cooperative_128x256>(const ScaledCall&);

}  // namespace halftone::gemm
