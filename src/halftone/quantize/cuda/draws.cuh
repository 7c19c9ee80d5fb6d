#pragma once
#include "halftone/formats/hadamard.h"
#include "halftone/quantize/stochastic.h"

namespace halftone::device {

// Draws of stochastic rounding (numerics.md section 4, L = 16) for matrices whose rows begin at multiples of 8 elements: the eight elements
// of a vector share one Philox group. The host precomputes the key schedule and the contribution of the words shared by all groups (group
// >> 32, step and micro) to the first rounds. If the step lies in device memory, the kernel computes the three words that depend on it at
// start (StepWords).
struct Draws {
  // Keys of rounds 0 to 9; [0], [1] and key_hi[2] include the shared words, see draw8.
  uint32_t key_lo[10], key_hi[10];
  uint32_t first, row;   // group of element (0, 0), groups per row; modulo 2^32
  const uint32_t* step;  // null: the step is already in the keys
};
inline constexpr uint32_t kPhilox0 = 0xD2511F53u, kPhilox1 = 0xCD9E8D57u;

// Contribution of the step after rounds 0 and 1, in the words of later rounds: key_lo[1], key_hi[1], key_hi[2].
struct StepWords {
  uint32_t lo1, hi1, hi2;
};
__host__ __device__ inline StepWords mix_step(const Draws& d, uint32_t step) {
  const uint64_t of_step = uint64_t{kPhilox1} * step;
  const uint64_t of_shared = uint64_t{kPhilox0} * (static_cast<uint32_t>(of_step >> 32) ^ d.key_lo[0]);
  return {d.key_lo[1] ^ static_cast<uint32_t>(of_step), d.key_hi[1] ^ static_cast<uint32_t>(of_shared >> 32),
          d.key_hi[2] ^ static_cast<uint32_t>(of_shared)};
}

inline Draws make_draws(const Rounding& r, int64_t columns) {
  Draws d{};
  PhiloxKey k = r.key;
  for (int i = 0; i < 10; ++i) {
    d.key_lo[i] = k.lo, d.key_hi[i] = k.hi;
    k.lo += 0x9E3779B9u, k.hi += 0xBB67AE85u;
  }
  const int64_t first = r.index(0, 0, columns) / 8;
  d.first = static_cast<uint32_t>(first), d.row = static_cast<uint32_t>((r.row_length == 0 ? columns : r.row_length) / 8);
  d.key_lo[0] ^= static_cast<uint32_t>(first >> 32);
  d.key_hi[0] ^= r.micro;
  d.step = r.device_step;
  if (d.step == nullptr) {
    const StepWords w = mix_step(d, r.step);
    d.key_lo[1] = w.lo1, d.key_hi[1] = w.hi1, d.key_hi[2] = w.hi2;
  }
  return d;
}
// Whether rows begin at multiples of 8 and the groups of all rows, tile overhang included, share their upper words. C: length of the copy's
// vectors, which may exceed the matrix.
inline bool whole_groups(const Rounding& r, int64_t rows, int64_t columns, int64_t C) {
  const int64_t first = r.index(0, 0, columns), row = r.row_length == 0 ? columns : r.row_length;
  const int64_t last = first + ((rows > C ? rows : C) + 128) * row + columns + C + 128;
  return first % 8 == 0 && row % 8 == 0 && row < (int64_t{1} << 34) && first >> 35 == last >> 35;
}

// Words for a step known on the host.
__device__ __forceinline__ StepWords host_step_words(const Draws& d) { return {d.key_lo[1], d.key_hi[1], d.key_hi[2]}; }
// Called by full warps. Warp reductions of lane-uniform words leave them in uniform registers.
__device__ __forceinline__ StepWords step_words(const Draws& d) {
  StepWords w = host_step_words(d);
  if (d.step != nullptr) [[unlikely]] {
    asm volatile("" ::: "memory");  // forces a branch for host steps instead of about 40 predicated instructions
    w = mix_step(d, *d.step);
    w = {__reduce_or_sync(0xFFFFFFFFu, w.lo1), __reduce_or_sync(0xFFFFFFFFu, w.hi1), __reduce_or_sync(0xFFFFFFFFu, w.hi2)};
  }
  return w;
}

// Rotation signs, given or derived from the step in device memory (quantize/operand.h). Args: signs, signs_step and signs_key.
template <class Args>
__device__ __forceinline__ RotationSigns rotation_signs(const Args& a) {
  return a.signs_step == nullptr ? a.signs : RotationSigns(philox(a.signs_key, 0, *a.signs_step));
}

// Rounds 0 and 1 of the group whose product with kPhilox0 is a. Groups of other keys share that product.
__device__ __forceinline__ void first_rounds(const Draws& d, const StepWords& w, uint64_t a, uint32_t (&v)[4]) {
  const uint64_t b = uint64_t{kPhilox1} * (static_cast<uint32_t>(a >> 32) ^ d.key_hi[0]);
  v[0] = static_cast<uint32_t>(b >> 32) ^ w.lo1, v[1] = static_cast<uint32_t>(b);
  v[2] = static_cast<uint32_t>(a) ^ w.hi1, v[3] = 0;
}
template <int kGroups>
__device__ __forceinline__ void other_rounds(const Draws& d, const StepWords& w, uint32_t (*v)[4]) {
#pragma unroll
  for (int i = 2; i < 10; ++i) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const uint64_t a = uint64_t{kPhilox0} * v[n][0], b = uint64_t{kPhilox1} * v[n][2];
      v[n][0] = static_cast<uint32_t>(b >> 32) ^ v[n][1] ^ d.key_lo[i], v[n][1] = static_cast<uint32_t>(b);
      v[n][2] = static_cast<uint32_t>(a >> 32) ^ v[n][3] ^ (i == 2 ? w.hi2 : d.key_hi[i]);
      v[n][3] = static_cast<uint32_t>(a);
    }
  }
}

// Draws u of kGroups groups, `step` apart: element i is in half (i & 1) of word i >> 1. Processing several groups reads the key schedule
// once for all of them.
template <int kGroups>
__device__ __forceinline__ void draw8(const Draws& d, const StepWords& w, uint32_t group, uint32_t step, uint32_t (*v)[4]) {
#pragma unroll
  for (int n = 0; n < kGroups; ++n, group += step) first_rounds(d, w, uint64_t{kPhilox0} * group, v[n]);
  other_rounds<kGroups>(d, w, v);
}

}  // namespace halftone::device
