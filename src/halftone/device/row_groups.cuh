#pragma once
#include "halftone/base/row_groups.h"

namespace halftone::device {

// The group that a row of the buffer is in; `groups` for rows behind the last one. Of groups with one offset all but the last are empty.
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
