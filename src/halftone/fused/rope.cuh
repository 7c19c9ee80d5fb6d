#pragma once
#include <cuda_runtime.h>

#include "halftone/device/row_grid.cuh"
#include "halftone/device/vec.cuh"
#include "halftone/fused/rope.h"

// Shared parts of kernels with a rotation. A thread processes N pairs of a head.
namespace halftone::device {

// Positions of the 2N elements: adjacent, or N in each half. Elements that are not rotated count as adjacent pairs.
struct PairPlace {
  uint32_t first, second;  // N elements each
  bool rotated, adjacent;
};
template <int N>
__device__ PairPlace pair_place(const Rope& p, uint32_t pair) {
  const auto half = static_cast<uint32_t>(rotated_of(p) / 2);
  const bool rotated = pair < half, adjacent = p.pairing == RopePairing::neighbours || !rotated;
  return {adjacent ? 2 * pair : pair, adjacent ? 2 * pair + N : half + pair, rotated, adjacent};
}

template <int N, class T>
__device__ void load_pairs(const T* head, const PairPlace& at, float (&v)[2 * N]) {
  if (N > 1 && at.adjacent) {  // a single pair may start at any element
    const Vec<T, 2 * N> x = load<2 * N>(head + at.first);
    for (int j = 0; j < 2 * N; ++j) v[j] = to_f32(x.value[j]);
  } else {
    const Vec<T, N> a = load<N>(head + at.first), b = load<N>(head + at.second);
    for (int j = 0; j < N; ++j) v[j] = to_f32(a.value[j]), v[N + j] = to_f32(b.value[j]);
  }
}
template <int N, class T>
__device__ void store_pairs(T* head, const PairPlace& at, const float (&v)[2 * N]) {
  if (N > 1 && at.adjacent) {
    Vec<T, 2 * N> x;
    for (int j = 0; j < 2 * N; ++j) from_f32(v[j], x.value[j]);
    store(head + at.first, x);
  } else {
    Vec<T, N> a, b;
    for (int j = 0; j < N; ++j) from_f32(v[j], a.value[j]), from_f32(v[N + j], b.value[j]);
    store(head + at.first, a), store(head + at.second, b);
  }
}

// NaN if the position is outside the table.
template <int N>
__device__ void turn_pairs(const Rope& p, bool inverse, int64_t position, uint32_t pair, const PairPlace& at, float (&v)[2 * N]) {
  if (!at.rotated) return;
  const bool inside = position >= 0 && position < p.max_positions, near = p.pairing == RopePairing::neighbours;
  const int64_t row = (inside ? position : 0) * (rotated_of(p) / 2) + pair;
  const Vec<float, N> c = load<N>(p.cos + row), s = load<N>(p.sin + row);
  for (int j = 0; j < N; ++j) {
    const float cosine = inside ? c.value[j] : __int_as_float(0x7FC00000), sine = inverse ? -s.value[j] : s.value[j];
    // Contracted like fused/rows/rope.h.
    if (near) {
      const float a = v[2 * j], b = v[2 * j + 1];
      v[2 * j] = fmaf(a, cosine, -(b * sine)), v[2 * j + 1] = fmaf(b, cosine, a * sine);
    } else {
      const float a = v[j], b = v[N + j];
      v[j] = fmaf(-b, sine, a * cosine), v[N + j] = fmaf(a, sine, b * cosine);
    }
  }
}

// Tokens of a thread and their positions; divides only once, for the first token. wrap: the thread's step modulo seq_len.
class TokenWalk {
 public:
  __device__ TokenWalk(const Rope& p, const RowGrid& grid, int64_t wrap)
      : token_(grid.row()), step_(grid.row_step()), in_sequence_(p.positions != nullptr ? 0 : token_ % p.seq_len), wrap_(wrap) {}
  __device__ int64_t token() const { return token_; }
  __device__ int64_t position(const Rope& p) const { return p.positions != nullptr ? p.positions[token_] : in_sequence_ + p.offset; }
  __device__ void next(const Rope& p) {
    token_ += step_, in_sequence_ += wrap_;
    if (in_sequence_ >= p.seq_len) in_sequence_ -= p.seq_len;
  }

 private:
  int64_t token_, step_, in_sequence_, wrap_;
};
inline int64_t walk_wrap(const Rope& p, const RowLaunch& r) { return p.positions != nullptr ? 0 : r.row_step % p.seq_len; }

constexpr int kRopeVector = 4;
// Whether threads can process kRopeVector pairs each: heads and tables in vectors of kRopeVector, rows of x and out in vectors of twice as
// many elements.
inline bool rope_in_vectors(const Rope& p) {
  const size_t bytes = size_of(p.dtype);
  return p.head_dim % (2 * kRopeVector) == 0 && rotated_of(p) % (2 * kRopeVector) == 0 &&
         rows_aligned(2 * kRopeVector, p.x, bytes, p.x_stride) && rows_aligned(2 * kRopeVector, p.out, bytes, p.out_stride) &&
         aligned<kRopeVector>(p.cos, 0) && aligned<kRopeVector>(p.sin, 0);
}

// Why a device cannot run it, or null.
inline const char* rope_problem(const Rope& p) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f32) return "rope: expected bf16 or f32";
  if (p.head_dim % 2 != 0 || p.max_positions <= 0) return "rope: expected an even head size and a table of positions";
  if (p.rotated < 0 || p.rotated > p.head_dim || p.rotated % 2 != 0) return "rope: expected an even number of rotated elements of a head";
  if (p.positions == nullptr && p.seq_len <= 0) return "rope: expected positions or the length of a sequence";
  return nullptr;
}

}  // namespace halftone::device
