#pragma once
#include "halftone/quantize/stochastic.h"

namespace halftone::device {

// Draws of stochastic rounding (numerics.md section 4, L = 16) for matrices whose rows begin at multiples of 8 elements: the
// eight elements of a vector share one Philox group. Key schedule made on the host, where it is free.
struct Draws {
  uint32_t key_lo[10], key_hi[10];
  uint32_t step, micro;
  int64_t first, row;  // group of element (0, 0), groups a row
};

inline Draws make_draws(const Rounding& r, int64_t columns) {
  Draws d{};
  PhiloxKey k = r.key;
  for (int i = 0; i < 10; ++i) {
    d.key_lo[i] = k.lo, d.key_hi[i] = k.hi;
    k.lo += 0x9E3779B9u, k.hi += 0xBB67AE85u;
  }
  d.step = r.step, d.micro = r.micro;
  d.first = r.index(0, 0, columns) / 8, d.row = (r.row_length == 0 ? columns : r.row_length) / 8;
  return d;
}
inline bool whole_groups(const Rounding& r, int64_t columns) {
  return r.index(0, 0, columns) % 8 == 0 && (r.row_length == 0 ? columns : r.row_length) % 8 == 0;
}

// The draws u of kGroups groups, `step` apart: element i in the (i & 1) half of word i >> 1. Several at once, so that the key
// schedule is read once for all of them.
template <int kGroups>
__device__ __forceinline__ void draw8(const Draws& d, int64_t group, int64_t step, uint32_t (*v)[4]) {
#pragma unroll
  for (int n = 0; n < kGroups; ++n, group += step) {
    v[n][0] = static_cast<uint32_t>(group), v[n][1] = static_cast<uint32_t>(group >> 32), v[n][2] = d.step, v[n][3] = d.micro;
  }
#pragma unroll
  for (int i = 0; i < 10; ++i) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const uint64_t a = uint64_t{0xD2511F53u} * v[n][0], b = uint64_t{0xCD9E8D57u} * v[n][2];
      v[n][0] = static_cast<uint32_t>(b >> 32) ^ v[n][1] ^ d.key_lo[i], v[n][1] = static_cast<uint32_t>(b);
      v[n][2] = static_cast<uint32_t>(a >> 32) ^ v[n][3] ^ d.key_hi[i], v[n][3] = static_cast<uint32_t>(a);
    }
  }
}

}  // namespace halftone::device
