#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::rows, Numbers::s8, Numbers::s8, false, false, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x256>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::s8, Numbers::s8, false, false, DType::f32, false, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::s8, Numbers::s8, false, false, DType::f32, true, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256>(const GroupedCall&);

}  // namespace halftone::gemm
