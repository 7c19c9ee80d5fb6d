#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

// bf16 wgrad: dY and X as stored, and values of quantised transposed copies.
template const char* grouped_product<Ragged::contraction, Numbers::bf16, Numbers::bf16, true, true, DType::f32, false, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256_pairs_along_m>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::bf16, Numbers::bf16, true, true, DType::f32, true, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256_pairs_along_m>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::bf16, Numbers::bf16, false, false, DType::f32, false, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256_pairs_along_m>(const GroupedCall&);
template const char* grouped_product<Ragged::contraction, Numbers::bf16, Numbers::bf16, false, false, DType::f32, true, false,
                                     BlockScales::none, GroupedTiling::cooperative_128x256_pairs_along_m>(const GroupedCall&);

}  // namespace halftone::gemm
