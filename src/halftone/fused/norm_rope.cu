#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/fused/block_reduce.cuh"
#include "halftone/fused/kernels_cuda.h"
#include "halftone/fused/rope.cuh"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kParts = 1024;  // blocks whose partial dw are summed in a second step

// A group of `lanes` lanes (a power of two) holds one head: lane i has the vectors i, i + lanes, ... of N pairs, at most K of them.
template <int N, int K>
struct Share {
  uint32_t head, lane, lanes, mask;
  PairPlace at[K];
  bool has[K];
  __device__ Share(const Rope& p, const RowGrid& grid, int log_lanes) {
    const auto column = static_cast<uint32_t>(grid.column());
    lanes = 1u << log_lanes, head = column >> log_lanes, lane = column & (lanes - 1);
    mask = (0xFFFFFFFFu >> (32 - lanes)) << (threadIdx.x % 32 & ~(lanes - 1));
    for (int k = 0; k < K; ++k) at[k] = pair_place<N>(p, pair(k)), has[k] = 2 * pair(k) < p.head_dim;
  }
  __device__ uint32_t pair(int k) const { return (lane + k * lanes) * N; }
  __device__ float sum(float x) const {
    for (uint32_t step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask, x, static_cast<int>(step));
    return x;
  }
  // Calls f(k) for the vectors of this lane.
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (has[k]) f(k);
    }
  }
};

template <int N, int K, class T>
__global__ void norm_rope_kernel(NormRope p, RowGrid grid, int log_lanes, int64_t wrap) {
  const Rope& r = p.rope;
  const Share<N, K> share(r, grid, log_lanes);
  if (share.head >= r.heads) return;
  float w[K][2 * N];
  share.each([&](int k) { load_pairs<N>(static_cast<const T*>(p.weight), share.at[k], w[k]); });
  for (TokenWalk walk(r, grid, wrap); walk.token() < r.tokens; walk.next(r)) {
    const T* x = static_cast<const T*>(r.x) + walk.token() * r.x_stride + share.head * r.head_dim;
    T* out = static_cast<T*>(r.out) + walk.token() * r.out_stride + share.head * r.head_dim;
    float v[K][2 * N], square = 0;
    share.each([&](int k) {
      load_pairs<N>(x, share.at[k], v[k]);
      for (int j = 0; j < 2 * N; ++j) square += v[k][j] * v[k][j];
    });
    const float rstd = 1.0f / sqrtf(share.sum(square) / static_cast<float>(r.head_dim) + p.eps);
    share.each([&](int k) {
      for (int j = 0; j < 2 * N; ++j) v[k][j] = v[k][j] * rstd * w[k][j];
      turn_pairs<N>(r, false, walk.position(r), share.pair(k), share.at[k], v[k]);
      store_pairs<N>(out, share.at[k], v[k]);
    });
  }
}

// Every lane owns elements of a head, so dw needs no atomics: it is summed in registers over the tokens, then over the block's heads.
template <int N, int K, class T>
__global__ void backward_norm_rope_kernel(NormRopeBackward p, RowGrid grid, int log_lanes, int64_t wrap, float* partial) {
  __shared__ float sums[kThreads * K * 2 * N];  // [groups per block][d]
  const Rope& r = p.norm.rope;
  const Share<N, K> share(r, grid, log_lanes);
  float w[K][2 * N], dw[K][2 * N] = {};
  share.each([&](int k) { load_pairs<N>(static_cast<const T*>(p.norm.weight), share.at[k], w[k]); });
  if (share.head < r.heads) {
    for (TokenWalk walk(r, grid, wrap); walk.token() < r.tokens; walk.next(r)) {
      const int64_t in_row = share.head * r.head_dim;
      const T* x = static_cast<const T*>(p.x) + walk.token() * p.x_stride + in_row;
      const T* dy = static_cast<const T*>(r.x) + walk.token() * r.x_stride + in_row;
      T* dx = static_cast<T*>(r.out) + walk.token() * r.out_stride + in_row;
      float v[K][2 * N], g[K][2 * N], square = 0, dot = 0;
      share.each([&](int k) {
        load_pairs<N>(x, share.at[k], v[k]), load_pairs<N>(dy, share.at[k], g[k]);
        turn_pairs<N>(r, true, walk.position(r), share.pair(k), share.at[k], g[k]);
        for (int j = 0; j < 2 * N; ++j) square += v[k][j] * v[k][j], dot += g[k][j] * w[k][j] * v[k][j];
      });
      const auto d = static_cast<float>(r.head_dim);
      const float rstd = 1.0f / sqrtf(share.sum(square) / d + p.norm.eps), mean = rstd * share.sum(dot) / d;
      share.each([&](int k) {
        for (int j = 0; j < 2 * N; ++j) {
          const float normal = v[k][j] * rstd;
          dw[k][j] += g[k][j] * normal;
          g[k][j] = rstd * (g[k][j] * w[k][j] - normal * mean);
        }
        store_pairs<N>(dx, share.at[k], g[k]);
      });
    }
  }
  if (p.dw == nullptr) return;
  float* of_group = sums + (threadIdx.x >> log_lanes) * r.head_dim;
  share.each([&](int k) {
    for (int j = 0; j < N; ++j) of_group[share.at[k].first + j] = dw[k][j], of_group[share.at[k].second + j] = dw[k][N + j];
  });
  __syncthreads();
  for (int64_t i = threadIdx.x; i < r.head_dim; i += kThreads) {
    float sum = 0;
    for (int group = 0; group < kThreads >> log_lanes; ++group) sum += sums[group * r.head_dim + i];
    partial[(int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * r.head_dim + i] = sum;
  }
}

// One block per element.
__global__ void add_parts_kernel(const float* partial, int parts, float* dw) {
  __shared__ float scratch[32];
  float sum = 0;
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += kThreads) sum += partial[int64_t{part} * gridDim.x + blockIdx.x];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dw[blockIdx.x] += sum;
}

const char* problem(const NormRope& p) {
  if (const char* of_rope = rope_problem(p.rope); of_rope != nullptr) return of_rope;
  return p.rope.head_dim > kMostNormRopeDim ? "norm_rope: expected a head size of at most 256" : nullptr;
}

// Calls run(kernel's N, K and T as types, lanes per head): vectors of pairs if alignment permits.
template <class F>
void with_share(const NormRope& p, bool wide, F&& run) {
  const int64_t vectors = p.rope.head_dim / 2 / (wide ? kRopeVector : 1);
  int log_lanes = 0;
  while (log_lanes < 5 && (1 << log_lanes) < vectors) ++log_lanes;
  const auto typed = [&](auto zero) {
    constexpr int kPairs = static_cast<int>(kMostNormRopeDim) / 2 / 32;  // maximum per lane
    using T = decltype(zero);
    if (wide)
      run.template operator()<kRopeVector, kPairs / kRopeVector, T>(log_lanes);
    else
      run.template operator()<1, kPairs, T>(log_lanes);
  };
  p.rope.dtype == DType::bf16 ? typed(bf16{}) : typed(float{});
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_norm_rope(const halftone::NormRope* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const Rope& r = what->rope;
  if (const char* why = problem(*what); why != nullptr) return why;
  if (r.tokens * r.heads * r.head_dim == 0) return nullptr;
  const bool wide = rope_in_vectors(r) && rows_aligned(2 * kRopeVector, what->weight, size_of(r.dtype), 0);
  with_share(*what, wide, [&]<int N, int K, class T>(int log_lanes) {
    const RowLaunch l = row_launch(r.tokens, r.heads << log_lanes, kThreads, 4096);
    norm_rope_kernel<N, K, T><<<l.blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*what, l.grid, log_lanes, walk_wrap(r, l));
  });
  return error_text(cudaGetLastError());
}

int64_t halftone_cuda_norm_rope_partial(int64_t head_dim) { return head_dim * halftone::device::kParts; }

const char* halftone_cuda_norm_rope_backward(const halftone::NormRopeBackward* what, float* partial, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const Rope& r = what->norm.rope;
  if (const char* why = problem(what->norm); why != nullptr) return why;
  if (r.tokens * r.heads * r.head_dim == 0) return nullptr;
  if (r.heads * 32 > kParts * kThreads) return "norm_rope: expected at most 8,192 heads";
  const auto s = static_cast<cudaStream_t>(stream);
  const bool wide = rope_in_vectors(r) && rows_aligned(2 * kRopeVector, what->norm.weight, size_of(r.dtype), 0) &&
                    rows_aligned(2 * kRopeVector, what->x, size_of(r.dtype), what->x_stride);
  int parts = 0;
  with_share(what->norm, wide, [&]<int N, int K, class T>(int log_lanes) {
    const RowLaunch l = row_launch(r.tokens, r.heads << log_lanes, kThreads, kParts);
    parts = static_cast<int>(l.blocks.x * l.blocks.y);
    backward_norm_rope_kernel<N, K, T><<<l.blocks, kThreads, 0, s>>>(*what, l.grid, log_lanes, walk_wrap(r, l), partial);
  });
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess && what->dw != nullptr) {
    add_parts_kernel<<<static_cast<unsigned>(r.head_dim), kThreads, 0, s>>>(partial, parts, what->dw);
    status = cudaGetLastError();
  }
  return error_text(status);
}
