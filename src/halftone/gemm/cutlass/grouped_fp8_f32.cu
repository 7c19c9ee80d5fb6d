#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, false, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x192>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, true, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x192>(const GroupedCall&);

}  // namespace halftone::gemm
