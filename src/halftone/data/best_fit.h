#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace halftone {

// Rows of whole items: row r holds items[row_begin[r] .. row_begin[r + 1]), in ascending order.
struct BinRows {
  std::vector<int64_t> items, row_begin = {0};
};

// Best-fit-decreasing bin packing (Ding et al. 2024, arXiv:2404.10830): items from the longest to the shortest, the earlier first among
// equals, each into the fullest row that has room for it. `lengths` are from 1 to `capacity`; items of length 0 are left out. The rows are
// in the order of their longest items, which is that of a shuffled input whatever the lengths. O(n log capacity).
BinRows best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace halftone
