#pragma once
#include <cstdint>

namespace halftone {

// The only summation order of fp64 sums (numerics.md 13): neighbours first, i.e. the binary tree over the row-major element index that adds
// 2j and 2j + 1 of every level, zero-padded to a power of two. A parallel sum over aligned power-of-two pieces gives the same bits. Value:
// int64_t -> double.
template <class Value>
constexpr double pairwise_sum(int64_t n, Value&& value) {
  double level[64] = {};  // level[k]: the pending sum of an aligned piece of 2^k elements
  for (int64_t i = 0; i < n; ++i) {
    double v = value(i);
    int k = 0;
    for (; ((i >> k) & 1) != 0; ++k) v = level[k] + v;
    level[k] = v;
  }
  // Pending sums, smallest piece first: the pieces to their right hold only zeros.
  double sum = 0;
  for (int k = 0; k < 63; ++k) {
    if (((n >> k) & 1) != 0) sum = level[k] + sum;
  }
  return sum;
}

static_assert(pairwise_sum(7, [](int64_t i) { return static_cast<double>(i + 1); }) == 28 &&
              pairwise_sum(0, [](int64_t) { return 1.0; }) == 0);

}  // namespace halftone
