#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/device/row_grid.cuh"
#include "halftone/device/vec.cuh"
#include "halftone/fused/rope_cuda.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

// N pairs a thread: 2N adjacent elements, or N of each half. wrap: rows from one token of a thread to the next, modulo seq_len.
template <int N, class T>
__global__ void rope_kernel(Rope p, RowGrid grid, int64_t wrap) {
  const auto half = static_cast<uint32_t>(p.head_dim / 2), across = half / N, column = static_cast<uint32_t>(grid.column());
  const uint32_t head = column / across, pair = column % across * N;
  if (head >= p.heads) return;
  int64_t t = grid.row(), in_sequence = p.positions != nullptr ? 0 : t % p.seq_len;
  for (; t < p.tokens; t += grid.row_step()) {
    const int64_t position = p.positions != nullptr ? p.positions[t] : in_sequence + p.offset;
    in_sequence += wrap;
    if (in_sequence >= p.seq_len) in_sequence -= p.seq_len;
    const bool inside = position >= 0 && position < p.max_positions;
    const int64_t row = inside ? position * half : 0;
    const Vec<float, N> c = load<N>(p.cos + row + pair), s = load<N>(p.sin + row + pair);
    const auto turn = [&](float a, float b, int j, T& first, T& second) {
      const float cosine = c.value[j], sine = p.inverse ? -s.value[j] : s.value[j], poison = inside ? 1.0f : __int_as_float(0x7FC00000);
      // Fused as fused/rows/rope.h fuses them.
      const bool near = p.pairing == RopePairing::neighbours;
      from_f32((near ? fmaf(a, cosine, -(b * sine)) : fmaf(-b, sine, a * cosine)) * poison, first);
      from_f32((near ? fmaf(b, cosine, a * sine) : fmaf(a, sine, b * cosine)) * poison, second);
    };
    const T* x = static_cast<const T*>(p.x) + t * p.x_stride + head * p.head_dim;
    T* out = static_cast<T*>(p.out) + t * p.out_stride + head * p.head_dim;
    if (p.pairing == RopePairing::neighbours) {
      constexpr int kRun = N == 1 ? 1 : 2 * N;  // a pair alone may lie at any element
      Vec<T, kRun> v[2 * N / kRun], r[2 * N / kRun];
      for (int k = 0; k < 2 * N / kRun; ++k) v[k] = load<kRun>(x + 2 * pair + k * kRun);
      const auto in = [&](int e) { return to_f32(v[e / kRun].value[e % kRun]); };
      for (int j = 0; j < N; ++j) {
        turn(in(2 * j), in(2 * j + 1), j, r[2 * j / kRun].value[2 * j % kRun], r[(2 * j + 1) / kRun].value[(2 * j + 1) % kRun]);
      }
      for (int k = 0; k < 2 * N / kRun; ++k) store(out + 2 * pair + k * kRun, r[k]);
    } else {
      const Vec<T, N> a = load<N>(x + pair), b = load<N>(x + half + pair);
      Vec<T, N> first, second;
      for (int j = 0; j < N; ++j) turn(to_f32(a.value[j]), to_f32(b.value[j]), j, first.value[j], second.value[j]);
      store(out + pair, first), store(out + half + pair, second);
    }
  }
}

template <class T>
void launch(const Rope& p, cudaStream_t stream) {
  constexpr int kVector = 4;
  const bool wide = p.head_dim % (2 * kVector) == 0 && rows_aligned(2 * kVector, p.x, sizeof(T), p.x_stride) &&
                    rows_aligned(2 * kVector, p.out, sizeof(T), p.out_stride) && aligned<kVector>(p.cos, 0) && aligned<kVector>(p.sin, 0);
  // Few blocks: a thread divides once, for its first token.
  const RowLaunch r = row_launch(p.tokens, p.heads * (p.head_dim / 2) / (wide ? kVector : 1), kThreads, 4096);
  const int64_t wrap = p.positions != nullptr ? 0 : r.row_step % p.seq_len;
  if (wide)
    rope_kernel<kVector, T><<<r.blocks, kThreads, 0, stream>>>(p, r.grid, wrap);
  else
    rope_kernel<1, T><<<r.blocks, kThreads, 0, stream>>>(p, r.grid, wrap);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_rope(const halftone::Rope* what, void* stream) {
  using namespace halftone;
  if (what->dtype != DType::bf16 && what->dtype != DType::f32) return "rope: expected bf16 or f32";
  if (what->head_dim % 2 != 0 || what->max_positions <= 0) return "rope: expected an even head size and a table of positions";
  if (what->tokens * what->heads * what->head_dim == 0) return nullptr;
  if (what->positions == nullptr && what->seq_len <= 0) return "rope: expected positions or the length of a sequence";
  const auto s = static_cast<cudaStream_t>(stream);
  what->dtype == DType::bf16 ? device::launch<bf16>(*what, s) : device::launch<float>(*what, s);
  return device::error_text(cudaGetLastError());
}
