#pragma once
#include <cstdint>

#include "halftone/base/philox.h"

namespace halftone {

// Rounding mode of a quantiser. If `stochastic`, the element at (row, column) of the given matrix uses the draw of logical element i =
// (first_row + row) * row_length + first_column + column (numerics.md section 4): key from philox_key(seed, fqn + "#" + role), roles x.fwd
// w.fwd w.dgrad dy.dgrad dy.wgrad x.wgrad.
struct Rounding {
  bool stochastic = false;
  PhiloxKey key{};
  uint32_t step = 0, micro = 0;
  int64_t first_row = 0, first_column = 0;
  int64_t row_length = 0;  // row length of the logical tensor; 0: that of the given matrix
  // CUDA: device pointer to the step, read when the kernel runs, so that every graph replay draws anew. Null: use `step`. CPU functions
  // always use `step`.
  const uint32_t* device_step = nullptr;

  constexpr int64_t index(int64_t row, int64_t column, int64_t columns) const {
    return (first_row + row) * (row_length == 0 ? columns : row_length) + first_column + column;
  }
};

// The 16-bit draw (L = 16) of logical element i.
constexpr uint16_t sr_bits16(const Rounding& r, int64_t i) {
  const auto words = philox(r.key, static_cast<uint64_t>(i >> 3), r.step, r.micro);
  const uint32_t word = words[static_cast<size_t>((i & 7) >> 1)];
  return static_cast<uint16_t>((i & 1) == 0 ? word : word >> 16);
}

// The 32-bit draw (L = 32) of logical element i.
constexpr uint32_t sr_bits32(const Rounding& r, int64_t i) {
  return philox(r.key, static_cast<uint64_t>(i >> 2), r.step, r.micro)[static_cast<size_t>(i & 3)];
}

}  // namespace halftone
