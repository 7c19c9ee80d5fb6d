#include "halftone/gemm/cutlass/scaled.cuh"

namespace halftone::gemm {

// bf16 with row or column scales, which cuBLASLt lacks: forward GEMM of int8_weight, codes as bf16.
template const char* scaled_product<Numbers::bf16, Numbers::bf16, DType::bf16, false, Tiling::cooperative_128x256>(
    const ScaledCall&);
template const char* scaled_product<Numbers::bf16, Numbers::bf16, DType::f32, false, Tiling::cooperative_128x256>(const ScaledCall&);

}  // namespace halftone::gemm
