#pragma once
#include <cstdint>

namespace halftone {

// Groups of rows that share a weight: the tokens routed to one expert (numerics.md section 8). Group g covers rows [offsets[g], offsets[g +
// 1]). Rows from ends[g] on are padding: zeros in every tensor that a GEMM or a quantiser reads. Offsets are multiples of kGroupRows, so no
// token block and no GEMM tile spans two groups. A group may be empty.
inline constexpr int64_t kGroupRows = 128;

struct RowGroups {
  int64_t groups = 0;                // 0: no groups, one matrix
  const int32_t* offsets = nullptr;  // [groups + 1], starts with 0; on the same device as the rows
  const int32_t* ends = nullptr;     // [groups], offsets[g] <= ends[g] <= offsets[g + 1]
};

// Buffer rows that hold `rows` rows for any assignment to groups: the size is known before routing.
constexpr int64_t most_group_rows(int64_t rows, int64_t groups) {
  const int64_t used = rows < groups ? rows : groups;  // each of these may need padding
  return (rows + used * (kGroupRows - 1)) / kGroupRows * kGroupRows;
}

}  // namespace halftone
