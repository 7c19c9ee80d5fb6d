#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// fp8 scales inside the sum: none; block128 of A and tile128 of B (`rows`); or block128 of both (`contraction`).
enum class BlockScales { none, block_tile, block_block };

// Tiles of D as in Tiling. A pair of tiles loads shared data once; in `rows` pairs lie along n, since along m they could belong to two
// groups.
enum class GroupedTiling {
  cooperative_128x256,
  cooperative_128x256_pairs_along_m,
  cooperative_128x256_pairs_along_n,
  cooperative_128x192,
  cooperative_128x128,
  pingpong_128x128
};

// Grouped GEMM on sm_90 tensor cores with the scales in the epilogue: (sum * scale_m) * scale_n, each step rounded separately in this
// order, as in ScaledCall.
struct GroupedCall {
  int m = 0, n = 0, k = 0;                // of the full buffer: rows: m = R; contraction: k = R
  int groups = 0;                         // at least 1
  const void *a = nullptr, *b = nullptr;  // addresses and rows 16-byte aligned
  int64_t lda = 0, ldb = 0;               // row strides in elements
  int64_t stride_b = 0;                   // rows: elements from group to group
  void* d = nullptr;
  // null: 1. Element i of group g is scale[g * group + (vector ? i : 0)]; for A in `rows`, i counts the rows of the buffer.
  struct Factors {
    const float* scale = nullptr;
    bool vector = false;
    int64_t group = 0;
  } scale_m, scale_n;
  // A, and B in `contraction`: one column of blocks after the other, [ceil(k / 128), rows]. B in `rows`: [ceil(n / 128), ceil(k / 128)] per
  // group, `block_stride_b` from group to group.
  const float *block_a = nullptr, *block_b = nullptr;
  int64_t block_stride_b = 0;
  const int32_t *offsets = nullptr, *ends = nullptr;
  const int32_t* order = nullptr;  // rows: the group of each kGroupRows rows; contraction: the groups, longest first
  int sm_count = 0;
  cudaStream_t stream = nullptr;
};

// Each combination is compiled in a file of this folder. fast_accumulation applies to fp8 only. Returns null or an error.
template <Ragged kRagged, Numbers kA, Numbers kB, bool kTransposedA, bool kTransposedB, DType kD, bool kAccumulate, bool kFast,
          BlockScales kBlocks, GroupedTiling kTiling>
const char* grouped_product(const GroupedCall& call);

}  // namespace halftone::gemm
