#pragma once
#include "halftone/quantize/cuda/block32.cuh"
#include "halftone/quantize/cuda/fp4_block.cuh"

namespace halftone::device {

// What a warp of slab_kernel (fp4_slab.cuh) has in shared memory: 32 x 64 elements, draws of as many that become outputs of the transposed
// copy.
inline constexpr int kSlabRows = 32, kSlabColumns = 64, kSlabBytes = kSlabRows * kSlabColumns * 2;
template <class T>
inline constexpr int kSlabOf = kSlabRows* kSlabColumns* static_cast<int>(sizeof(T));

// What a warp knows of its slab. Rows are of 64 elements; their chunks of 16 bytes change places so that lanes meet no bank twice.
template <class T>
struct Slab {
  uint8_t *x, *second, *memory;
  uint32_t second_at;     // where `second` is in `memory`
  int lane, row, column;  // of the matrix
  int local_row, local_column;
  static constexpr int kPitch = kSlabColumns * sizeof(T);
  __device__ __forceinline__ uint4* chunk(int r, int c) const {
    return reinterpret_cast<uint4*>(x + r * kPitch + ((sizeof(T) == 2 ? c ^ (r & 1) : c ^ (c >> 3) ^ (r & 1) << 1) << 4));
  }
  // Columns 2 * lane and 2 * lane + 1.
  __device__ __forceinline__ auto pair(int r) const {
    if constexpr (sizeof(T) == 2) {
      return reinterpret_cast<const uint32_t*>(chunk(r, lane >> 2))[lane & 3];
    } else {
      return reinterpret_cast<const float2*>(chunk(r, lane >> 1))[lane & 1];
    }
  }
  // Of a row of outputs of bf16, which lie where the row's first elements were.
  __device__ __forceinline__ uint4* output(int r, int c) const { return reinterpret_cast<uint4*>(x + r * kPitch + ((c ^ (r & 1)) << 4)); }
};

// kRows rows of two columns, rotated where there is a width, as blocks. kMultiply: bf16 widened and negated by multiply-adds; flips with
// kFlipBits then.
template <class T, int kRows, int kWidth, bool kMultiply = false>
__device__ __forceinline__ void load_columns(const Slab<T>& s, int first, const uint4* flips, const Shifts& by,
                                             Block16<T> (&t)[2][kRows / 16]) {
  if constexpr (sizeof(T) == 2) {
    uint32_t w[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) w[i] = s.pair(first + i);
    if constexpr (kWidth != 0) {
      const auto put = [&](const float(&v)[kRows], Block16<T>(&of)[kRows / 16]) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i)
          of[i / 8].w[i % 8] = bf16_words(v[2 * i] * hadamard_norm(kRows), v[2 * i + 1] * hadamard_norm(kRows));
      };
      float v[kRows];
      if constexpr (kMultiply) {
        const auto rotate_half = [&](auto half) {
          asm volatile("" ::: "memory");  // or the compiler keeps the flips in registers
#pragma unroll
          for (int i = 0; i < kRows; i += 4) {
            const uint4 f = flips[i / 4];
            v[i] = widened<half.value>(w[i], f.x, by.zeros), v[i + 1] = widened<half.value>(w[i + 1], f.y, by.zeros);
            v[i + 2] = widened<half.value>(w[i + 2], f.z, by.zeros), v[i + 3] = widened<half.value>(w[i + 3], f.w, by.zeros);
          }
          butterflies(v), put(v, t[half.value]);
        };
        rotate_half(std::integral_constant<int, 0>{}), rotate_half(std::integral_constant<int, 1>{});
      } else {
        rotate_column<kRows, 0>(w, flips, by.by16, v), put(v, t[0]);
        rotate_column<kRows, 1>(w, flips, by.by16, v), put(v, t[1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        t[0][i / 8].w[i % 8] = __byte_perm(w[2 * i], w[2 * i + 1], 0x5410),
                          t[1][i / 8].w[i % 8] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7632);
      }
    }
  } else {
    float2 w[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) w[i] = s.pair(first + i);
    if constexpr (kWidth != 0) {
      const auto put = [&](const float(&v)[kRows], Block16<T>(&of)[kRows / 16]) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) of[i / 16].v[i % 16] = v[i] * hadamard_norm(kRows);
      };
      float v[kRows];
      rotate_column<kRows, 0>(w, flips, 0, v), put(v, t[0]);
      rotate_column<kRows, 1>(w, flips, 0, v), put(v, t[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) t[0][i / 16].v[i % 16] = w[i].x, t[1][i / 16].v[i % 16] = w[i].y;
    }
  }
}

// Where the draws of two columns and four rows, every fourth, lie among those of as many rows: columns 8 * group + 2 * pair and one on.
__device__ __forceinline__ uint32_t drawn_at(int group, int pair) { return static_cast<uint32_t>(4 * group + (pair ^ (group >> 1 & 3))); }

// Draws of all elements of the slab, rows of 128 bytes; spread: of four rows together, so that a lane reads those of its columns by four
// loads a half of the rows.
template <class T, Rounds kRounds>
__device__ __forceinline__ void slab_draws(const CopyArgs& d, const Slab<T>& s) {
  const StepWords words = step_words(d.draws);
  const uint32_t group = d.draws.first + static_cast<uint32_t>(s.row + (s.lane >> 3)) * d.draws.row + static_cast<uint32_t>(s.column) / 8 +
                         static_cast<uint32_t>(s.lane & 7);
  [[maybe_unused]] uint32_t to;
  if constexpr (kRounds == Rounds::spread) to = s.second_at + static_cast<uint32_t>(s.lane >> 3) * 512 + drawn_at(s.lane & 7, 0) * 16;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    uint32_t v[4][4];
    draw8<4>(d.draws, words, group + static_cast<uint32_t>(16 * i) * d.draws.row, 4 * d.draws.row, v);
    if constexpr (kRounds == Rounds::spread) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *reinterpret_cast<uint4*>(s.memory + (to ^ static_cast<uint32_t>(k << 4))) = {v[0][k], v[1][k], v[2][k], v[3][k]};
      }
      to += kSlabBytes / 2;
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<uint4*>(s.second + (16 * i + 4 * n + (s.lane >> 3)) * 128 + (s.lane & 7) * 16) = {v[n][0], v[n][1], v[n][2],
                                                                                                            v[n][3]};
      }
    }
  }
}
// Of the lane's two columns and 16 rows.
template <class T>
__device__ __forceinline__ void load_draws(const Slab<T>& s, uint32_t at, uint32_t (&draws)[16]) {
  const auto* from = reinterpret_cast<const uint4*>(s.memory + at);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = from[32 * i];
    draws[i] = v.x, draws[i + 4] = v.y, draws[i + 8] = v.z, draws[i + 12] = v.w;
  }
}

// Where a column's 16 or 32 bytes of a half of the slab's rows are staged.
__device__ __forceinline__ uint4* staged_values(uint8_t* second, int half, int column, int chunk) {
  const int slot = ((column & 3) * 2 + chunk) ^ ((column >> 2) & 3) ^ half * 4;
  return reinterpret_cast<uint4*>(second + half * (kSlabBytes / 2) + (column >> 2) * 128 + slot * 16);
}

}  // namespace halftone::device
