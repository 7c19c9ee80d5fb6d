#pragma once
#include "halftone/base/row_groups.h"

namespace halftone::device {

// Group of a buffer row; `groups` for rows after the last group. Among groups with equal offsets, only the last is not empty.
__device__ inline int group_of(const RowGroups& g, int64_t row) {
  int low = 0, high = static_cast<int>(g.groups);  // offsets[low] <= row
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (g.offsets[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace halftone::device
