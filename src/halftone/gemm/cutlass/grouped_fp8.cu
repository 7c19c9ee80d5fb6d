#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, false>(
    const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, true>(
    const GroupedCall&);

}  // namespace halftone::gemm
