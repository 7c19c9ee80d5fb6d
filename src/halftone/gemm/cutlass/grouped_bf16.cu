#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

// bf16 to bf16: forward products, and those with W as it is stored.
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, false, DType::bf16, false, false>(
    const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, true, DType::bf16, false, false>(
    const GroupedCall&);

}  // namespace halftone::gemm
