#include "halftone/data/best_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "data/data_testing.h"

namespace halftone::best_fit_test {
namespace {

using Lengths = std::vector<int64_t>;

// The rule as its paper states it, row by row.
BinRows plainly(const Lengths& lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t i) { return lengths[static_cast<size_t>(i)]; });
  struct Row {
    int64_t room, longest;
    std::vector<int64_t> items;
    int64_t last_change;
  };
  std::vector<Row> rows;
  int64_t step = 0;
  for (const int64_t item : order) {
    const int64_t n = lengths[static_cast<size_t>(item)];
    if (n == 0) continue;
    Row* best = nullptr;  // the fullest with room; of equal ones the one filled last
    for (Row& row : rows) {
      if (row.room < n) continue;
      if (best == nullptr || row.room < best->room || (row.room == best->room && row.last_change > best->last_change)) best = &row;
    }
    if (best == nullptr) best = &rows.emplace_back(Row{capacity, item, {}, 0});
    best->room -= n;
    best->items.push_back(item);
    best->last_change = ++step;
  }
  std::ranges::sort(rows, {}, &Row::longest);
  BinRows out;
  for (Row& row : rows) {
    std::ranges::sort(row.items);
    out.items.insert(out.items.end(), row.items.begin(), row.items.end());
    out.row_begin.push_back(static_cast<int64_t>(out.items.size()));
  }
  return out;
}

TEST(BestFit, IsBestFitDecreasing) {
  std::mt19937 random(1);
  for (const int64_t capacity : {1, 2, 63, 64, 65, 100, 4095, 4096, 4097, 300'000}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      Lengths lengths(1 + random() % 200);
      const auto longest = static_cast<uint64_t>(repeat % 2 == 0 ? capacity : std::max<int64_t>(1, capacity / 5));
      for (int64_t& n : lengths) n = random() % 10 == 0 ? 0 : static_cast<int64_t>(1 + random() % longest);
      const BinRows rows = best_fit_decreasing(lengths, capacity), want = plainly(lengths, capacity);
      ASSERT_EQ(rows.items, want.items) << capacity;
      ASSERT_EQ(rows.row_begin, want.row_begin) << capacity;
    }
  }
}

TEST(BestFit, Edges) {
  EXPECT_TRUE(best_fit_decreasing({}, 8).items.empty());
  EXPECT_EQ(best_fit_decreasing({}, 8).row_begin, (Lengths{0}));
  EXPECT_EQ(best_fit_decreasing(Lengths{0, 0}, 8).row_begin, (Lengths{0}));
  EXPECT_EQ(best_fit_decreasing(Lengths{3, 8, 5}, 8).items, (Lengths{1, 0, 2})) << "rows by their longest items";
  EXPECT_EQ(best_fit_decreasing(Lengths{3, 8, 5}, 8).row_begin, (Lengths{0, 1, 3}));
  EXPECT_ERROR(best_fit_decreasing(Lengths{9}, 8), "an item of 9, a row of 8");
  EXPECT_ERROR(best_fit_decreasing(Lengths{-1}, 8), "an item of -1");
  EXPECT_ERROR(best_fit_decreasing(Lengths{1}, 0), "a row of 0");
}

// Chats: lengths are log-normal. Rows longer than the longest chat leave less than 1% empty.
TEST(BestFit, WastesLittleOnChats) {
  std::mt19937 random(2);
  for (const int64_t capacity : {2048, 4096}) {
    std::lognormal_distribution<double> chat(std::log(600.0), 1.0);
    Lengths lengths(20'000);
    for (int64_t& n : lengths) n = std::clamp<int64_t>(std::llround(chat(random)), 1, capacity);
    const double tokens = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    const auto rows = static_cast<double>(best_fit_decreasing(lengths, capacity).row_begin.size() - 1);
    EXPECT_LT(1 - tokens / (rows * static_cast<double>(capacity)), 0.01) << capacity;
  }
}

}  // namespace
}  // namespace halftone::best_fit_test
