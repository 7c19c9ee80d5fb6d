#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::rows, Numbers::s8, Numbers::s8, false, false, DType::bf16, false, false>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::s8, Numbers::s8, false, false, DType::f32, false, false>(
    const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::s8, Numbers::s8, false, false, DType::f32, true, false>(
    const GroupedCall&);

}  // namespace halftone::gemm
