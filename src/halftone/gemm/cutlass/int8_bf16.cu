#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// Outputs of forward and dgrad.
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::bf16, false, Tiling::pingpong_128x128>(const ScaledCall&);
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::bf16, false, Tiling::cooperative_128x256>(const ScaledCall&);

}  // namespace halftone::gemm
