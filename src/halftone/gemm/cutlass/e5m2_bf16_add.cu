#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// e5m2 x e5m2, accumulating.
template const char* scaled_product<Numbers::e5m2, Numbers::e5m2, DType::bf16, true, false, Tiling::cooperative_128x128>(const ScaledCall&);
template const char* scaled_product<Numbers::e5m2, Numbers::e5m2, DType::bf16, true, true, Tiling::pingpong_128x128>(const ScaledCall&);

}  // namespace halftone::gemm
