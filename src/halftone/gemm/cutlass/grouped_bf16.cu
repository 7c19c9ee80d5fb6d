#include "halftone/gemm/cutlass/grouped.cuh"

namespace halftone::gemm {

// bf16 to bf16: forward, and GEMMs with W as stored.
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, false, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x256>(const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, false, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x256_pairs_along_n>(const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, true, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x256>(const GroupedCall&);
template const char* grouped_product<Ragged::rows, Numbers::bf16, Numbers::bf16, false, true, DType::bf16, false, false, BlockScales::none,
                                     GroupedTiling::cooperative_128x256_pairs_along_n>(const GroupedCall&);

}  // namespace halftone::gemm
