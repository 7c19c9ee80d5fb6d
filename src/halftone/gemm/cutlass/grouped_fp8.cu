#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x192>(const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, true, BlockScales::none,
                                     GroupedTiling::cooperative_128x256>(const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, true, BlockScales::none,
                                     GroupedTiling::pingpong_128x128>(const GroupedCall&);

}  // namespace halftone::gemm
