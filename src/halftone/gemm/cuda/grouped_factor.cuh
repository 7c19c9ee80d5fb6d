#pragma once
#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// The group that a row of the buffer is in; `groups` for rows behind the last one.
__device__ inline int group_of(const RowGroups& g, int64_t row) {
  int low = 0, high = static_cast<int>(g.groups);  // offsets[low] <= row, or low = 0
  if (row >= g.offsets[high]) return high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.offsets[middle] <= row ? low : high) = middle;
  }
  return low;
}

// The factor outside of the sum of a row; `at` indexes row scales.
__device__ inline float row_factor(const GroupedOperand& x, float factor, int64_t group, int64_t at) {
  if (x.outer) factor *= x.outer[group];
  if (x.scales == Scales::tensor) factor *= x.scale[group];
  if (x.scales == Scales::row) factor *= x.scale[at];
  return factor;
}

}  // namespace halftone::gemm
