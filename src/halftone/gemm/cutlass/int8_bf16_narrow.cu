#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// Outputs of forward and dgrad: few rows, and wide tiles.
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::bf16, false, Tiling::pingpong_64x128>(const ScaledCall&);
template const char* scaled_product<Numbers::s8, Numbers::s8, DType::bf16, false, Tiling::pingpong_64x256>(const ScaledCall&);

}  // namespace halftone::gemm
