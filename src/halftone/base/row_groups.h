#pragma once
#include <cstdint>

namespace halftone {

// Groups of rows that share a weight: what the router sends to one expert each (numerics.md section 8). Group g is the rows
// [offsets[g], offsets[g + 1]), of which those from ends[g] on are padding: zeros in every tensor that a product or a quantiser reads.
// Offsets are multiples of kGroupRows, so that no block of tokens and no tile of a product lies in two groups. A group may be empty.
inline constexpr int64_t kGroupRows = 128;

struct RowGroups {
  int64_t groups = 0;                // 0: no groups, one matrix
  const int32_t* offsets = nullptr;  // [groups + 1], beginning with 0; on the device that the rows are on
  const int32_t* ends = nullptr;     // [groups], offsets[g] <= ends[g] <= offsets[g + 1]
};

// Rows of a buffer that `rows` rows fit into however they fall into groups: its size is known before the groups are.
constexpr int64_t most_group_rows(int64_t rows, int64_t groups) {
  const int64_t used = rows < groups ? rows : groups;  // each of these may need padding
  return (rows + used * (kGroupRows - 1)) / kGroupRows * kGroupRows;
}

}  // namespace halftone
