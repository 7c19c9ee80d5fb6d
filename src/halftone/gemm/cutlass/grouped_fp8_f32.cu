#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, false, false>(
    const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, true, false>(
    const GroupedCall&);

}  // namespace halftone::gemm
