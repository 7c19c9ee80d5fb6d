#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// fp8 scales inside of the sum: none, block128 of A and tile128 of B (products of rows), or block128 of both (contractions).
enum class BlockScales { none, block_tile, block_block };

// Tiles of D as in Tiling. Two tiles of a pair load what they share once; in `rows` they lie along n, since along m they could be of two
// groups.
enum class GroupedTiling {
  cooperative_128x256,
  cooperative_128x256_pairs_along_m,
  cooperative_128x256_pairs_along_n,
  cooperative_128x192,
  cooperative_128x128,
  pingpong_128x128
};

// A grouped product on sm_90's tensor cores with the scales in the epilogue: (sum * scale_m) * scale_n, each step rounded on its own and
// in this order, as in ScaledCall.
struct GroupedCall {
  int m = 0, n = 0, k = 0;                // of the whole buffer: rows: m = R; contraction: k = R
  int groups = 0;                         // at least 1
  const void *a = nullptr, *b = nullptr;  // addresses and rows 16-byte aligned
  int64_t lda = 0, ldb = 0;               // elements from row to row of the data
  int64_t stride_b = 0;                   // rows: elements from group to group
  void* d = nullptr;
  // null: 1. Element i of group g is scale[g * group + (vector ? i : 0)], where i of A in `rows` counts the rows of the buffer.
  struct Factors {
    const float* scale = nullptr;
    bool vector = false;
    int64_t group = 0;
  } scale_m, scale_n;
  // Of A, and of B in contractions, one column of blocks after the other: [ceil(k / 128), rows]; of B in `rows`
  // [ceil(n / 128), ceil(k / 128)], and from group to group `block_stride_b`.
  const float *block_a = nullptr, *block_b = nullptr;
  int64_t block_stride_b = 0;
  const int32_t *offsets = nullptr, *ends = nullptr;
  const int32_t* order = nullptr;  // rows: the group of each kGroupRows rows; contraction: the groups, longest first
  int sm_count = 0;
  cudaStream_t stream = nullptr;
};

// Each combination is compiled in one of the files beside this one. fast_accumulation counts for fp8 alone. Null or an error.
template <Ragged kRagged, Numbers kA, Numbers kB, bool kTransposedA, bool kTransposedB, DType kD, bool kAccumulate, bool kFast,
          BlockScales kBlocks, GroupedTiling kTiling>
const char* grouped_product(const GroupedCall& call);

}  // namespace halftone::gemm
