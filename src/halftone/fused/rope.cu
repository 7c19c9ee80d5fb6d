#include <cuda_runtime.h>

#include "halftone/device/error_text.h"
#include "halftone/fused/kernels_cuda.h"
#include "halftone/fused/rope.cuh"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

template <int N, class T>
__global__ void rope_kernel(Rope p, RowGrid grid, int64_t wrap) {
  const auto across = static_cast<uint32_t>(p.head_dim / 2) / N, column = static_cast<uint32_t>(grid.column());
  const uint32_t head = column / across, pair = column % across * N;
  const PairPlace at = pair_place<N>(p, pair);
  if (head >= p.heads || (!at.rotated && p.x == p.out)) return;
  for (TokenWalk walk(p, grid, wrap); walk.token() < p.tokens; walk.next(p)) {
    float v[2 * N];
    load_pairs<N>(static_cast<const T*>(p.x) + walk.token() * p.x_stride + head * p.head_dim, at, v);
    turn_pairs<N>(p, p.inverse, walk.position(p), pair, at, v);
    store_pairs<N>(static_cast<T*>(p.out) + walk.token() * p.out_stride + head * p.head_dim, at, v);
  }
}

template <int N, class T>
void launch(const Rope& p, cudaStream_t stream) {
  // Few blocks: a thread divides only once, for its first token.
  const RowLaunch r = row_launch(p.tokens, p.heads * (p.head_dim / 2) / N, kThreads, 4096);
  rope_kernel<N, T><<<r.blocks, kThreads, 0, stream>>>(p, r.grid, walk_wrap(p, r));
}
template <class T>
void launch(const Rope& p, cudaStream_t stream) {
  rope_in_vectors(p) ? launch<kRopeVector, T>(p, stream) : launch<1, T>(p, stream);
}

}  // namespace
}  // namespace halftone::device

const char* halftone_cuda_rope(const halftone::Rope* what, void* stream) {
  using namespace halftone;
  if (const char* problem = device::rope_problem(*what); problem != nullptr) return problem;
  if (what->tokens * what->heads * what->head_dim == 0) return nullptr;
  const auto s = static_cast<cudaStream_t>(stream);
  what->dtype == DType::bf16 ? device::launch<bf16>(*what, s) : device::launch<float>(*what, s);
  return device::error_text(cudaGetLastError());
}
