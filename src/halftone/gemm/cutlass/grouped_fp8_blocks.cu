#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

// 1x128 by 128x128 for forward and dgrad, 1x128 by 1x128 for wgrad.
template const char* grouped_product<Ragged::rows, Numbers::e4m3, Numbers::e4m3, false, false, DType::bf16, false, false,
                                     BlockScales::block_tile, GroupedTiling::cooperative_128x128>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, false, false,
                                     BlockScales::block_block, GroupedTiling::cooperative_128x128>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::e4m3, Numbers::e4m3, false, false, DType::f32, true, false,
                                     BlockScales::block_block, GroupedTiling::cooperative_128x128>(const GroupedCall&);

}  // namespace halftone::gemm
