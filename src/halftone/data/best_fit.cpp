#include "halftone/data/best_fit.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// A set of integers below `size`: 64-way tree of bits, the leaves first. Insertion, removal and search take O(log_64 size).
class IntegerSet {
 public:
  explicit IntegerSet(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }
  void insert(size_t i) {
    for (auto& level : levels_) level[i / 64] |= uint64_t{1} << (i % 64), i /= 64;
  }
  void erase(size_t i) {
    for (auto& level : levels_) {
      if ((level[i / 64] &= ~(uint64_t{1} << (i % 64))) != 0) return;
      i /= 64;
    }
  }
  // The smallest member from `i` on; -1 if there is none.
  int64_t next(size_t i) const {
    for (size_t l = 0; l < levels_.size(); ++l, i = i / 64 + 1) {
      if (i / 64 >= levels_[l].size()) return -1;
      const uint64_t rest = levels_[l][i / 64] >> (i % 64);
      if (rest == 0) continue;
      i += static_cast<size_t>(std::countr_zero(rest));
      while (l-- > 0) i = i * 64 + static_cast<size_t>(std::countr_zero(levels_[l][i]));
      return static_cast<int64_t>(i);
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// Indices of the items with a length, sorted by descending length, equal ones in order.
std::vector<int64_t> by_length(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> first(static_cast<size_t>(capacity) + 1);  // place of the first item of a length
  for (const int64_t n : lengths) {
    check(n >= 0 && n <= capacity, "packing: an item of {}, a row of {}", n, capacity);
    if (n > 0) ++first[static_cast<size_t>(n - 1)];
  }
  for (size_t n = first.size() - 1; n-- > 0;) first[n] += first[n + 1];
  std::vector<int64_t> order(static_cast<size_t>(first[0]));
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > 0) order[static_cast<size_t>(first[static_cast<size_t>(lengths[i])]++)] = static_cast<int64_t>(i);
  return order;
}

}  // namespace

BinRows best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  check(capacity >= 1, "packing: a row of {}", capacity);
  const std::vector<int64_t> order = by_length(lengths, capacity);
  std::vector<int64_t> longest;                                                    // item, by row
  std::vector<int64_t> row_of(lengths.size(), -1);                                 // by item
  std::vector<std::vector<int64_t>> with_room(static_cast<size_t>(capacity) + 1);  // rows by their room
  IntegerSet rooms(static_cast<size_t>(capacity) + 1);
  for (const int64_t item : order) {
    const int64_t n = lengths[static_cast<size_t>(item)];
    const int64_t room = rooms.next(static_cast<size_t>(n));
    int64_t row = static_cast<int64_t>(longest.size());
    if (room < 0) {
      longest.push_back(item);
    } else {
      auto& rows = with_room[static_cast<size_t>(room)];
      row = rows.back();
      rows.pop_back();
      if (rows.empty()) rooms.erase(static_cast<size_t>(room));
    }
    row_of[static_cast<size_t>(item)] = row;
    if (const auto left = static_cast<size_t>((room < 0 ? capacity : room) - n); left > 0) {
      with_room[left].push_back(row);
      rooms.insert(left);
    }
  }

  // Rows in the order of their longest items; the items of each in ascending order.
  std::vector<int64_t> rank(longest.size());
  {
    std::vector<int64_t> rows(longest.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::ranges::sort(rows, {}, [&](int64_t row) { return longest[static_cast<size_t>(row)]; });
    for (size_t r = 0; r < rows.size(); ++r) rank[static_cast<size_t>(rows[r])] = static_cast<int64_t>(r);
  }
  BinRows out;
  out.row_begin.assign(longest.size() + 1, 0);
  for (int64_t& row : row_of) {
    if (row < 0) continue;
    row = rank[static_cast<size_t>(row)];
    ++out.row_begin[static_cast<size_t>(row) + 1];
  }
  std::partial_sum(out.row_begin.begin(), out.row_begin.end(), out.row_begin.begin());
  std::vector<int64_t> next(out.row_begin.begin(), out.row_begin.end() - 1);
  out.items.resize(order.size());
  for (size_t i = 0; i < row_of.size(); ++i)
    if (row_of[i] >= 0) out.items[static_cast<size_t>(next[static_cast<size_t>(row_of[i])]++)] = static_cast<int64_t>(i);
  return out;
}

}  // namespace halftone
