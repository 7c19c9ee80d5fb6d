#include "halftone/quantize/cuda/amax_vector.cuh"
#include "halftone/quantize/cuda/gathered_rows.cuh"
#include "halftone/quantize/cuda/group_scale.cuh"
#include "halftone/quantize/cuda/store_codes.cuh"

namespace halftone::device {
namespace {

constexpr int kMostThreads = 512, kMostVectors = 8;

__device__ __forceinline__ uint32_t block_max(uint32_t a, uint32_t* shared) {
  a = __reduce_max_sync(0xFFFFFFFFu, a);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = a;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? shared[lane] : 0u);
}

__device__ __forceinline__ void load_row(const bf16* p, ElementVector<bf16>& x) { load_vector(p, x); }
__device__ __forceinline__ void load_row(const float* p, ElementVector<bf16>& x) {
  ElementVector<float> v;
  load_vector(p, v);
#pragma unroll
  for (int k = 0; k < 4; ++k) x.w[k] = bf16_words(v.v[2 * k], v.v[2 * k + 1]);
}

// One row per thread block, held in registers: reads the row once, whereas a tile kernel needs a separate amax pass. kVectors: vectors of
// eight elements per thread. T: bf16, or float treated as bf16.
template <class T, Coder kCoder, bool kStochastic, int kVectors>
__global__ void __launch_bounds__(kMostThreads) row_kernel(const __grid_constant__ TileArgs a) {
  __shared__ uint32_t shared[2][kMostThreads / 32];
  const CopyArgs& d = a.row;
  const int in_turn = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  constexpr int kTileRows = static_cast<int>(kGroupRows);
  const int row = a.from.source == nullptr ? in_turn : tile_in_turn(a.from, in_turn / kTileRows) * kTileRows + in_turn % kTileRows;
  ElementVector<bf16> x[kVectors];
  uint32_t amax = 0, negative = 0;
  const auto load = [&](int64_t from) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = (thread + i * threads) * 8;
      x[i] = {};
      if (from >= 0 && column < a.cols) load_row(static_cast<const T*>(a.x) + from * a.ld + column, x[i]);
    }
  };
  if (a.from.source == nullptr) {
    load(row);
  } else {
    const SourceRow from(a.from, row);
    load(from.row);
    if (a.from.weight != nullptr) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) scale8(x[i], from.weight);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kCoder == Coder::integer && d.element == Element::int4) {  // maxima of elements without and with the sign bit
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t bits = __float_as_uint(element(x[i], k));
        if (bits >> 31 == 0) amax = max(amax, bits);
        if (bits >> 31 != 0) negative = max(negative, bits & 0x7FFFFFFFu);
      }
    } else {
      amax = max(amax, amax_of(x[i]));
    }
  }
  amax = block_max(amax, shared[0]);
  if (kCoder == Coder::integer && d.element == Element::int4) negative = block_max(negative, shared[1]);
  const ScalePair s = group_rule<kCoder>(d, amax, negative);
  if (thread == 0 && d.scales != nullptr) static_cast<float*>(d.scales)[row] = s.scale;
  if (thread == 0 && row == 0 && d.outer != nullptr) *d.outer = 1;
  const StepWords step = kStochastic ? step_words(d.draws) : StepWords{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * threads;
    uint32_t draws[1][4] = {};
    if constexpr (kStochastic)
      draw8<1>(d.draws, step, d.draws.first + static_cast<uint32_t>(row) * d.draws.row + static_cast<uint32_t>(vector), 0, draws);
    const Codes8 q = encode8<kCoder, Step::multiply, kStochastic>(x[i], {s.inv, 0}, d.low, d.high, [&](int e) {
      return (e & 1) == 0 ? draw_number<0>(draws[0][e >> 1]) : draw_number<1>(draws[0][e >> 1]);
    });
    const Outputs<Form::codes> out(d, int64_t{row} * d.C + vector * 8, 8);
    if (vector * 8 < d.C) store_codes<kCoder, Place8::byte0>(out, 0, nullptr, q, s.inv != s.inv, {});
  }
}

template <class T, Coder kCoder, bool kStochastic>
void launch(const TileArgs& a, cudaStream_t stream) {
  const int vectors = (a.row.C + 7) / 8;
  const auto go = [&](auto kernel, int each) {
    const int threads = ((vectors + each - 1) / each + 31) / 32 * 32;
    kernel<<<static_cast<unsigned>(a.row.R), static_cast<unsigned>(threads), 0, stream>>>(a);
  };
  if (vectors <= 512) return go(row_kernel<T, kCoder, kStochastic, 2>, 2);
  if (vectors <= 1024) return go(row_kernel<T, kCoder, kStochastic, 4>, 4);
  go(row_kernel<T, kCoder, kStochastic, kMostVectors>, kMostVectors);
}
template <class T>
void launch(const TileArgs& a, Coder coder, bool stochastic, cudaStream_t stream) {
  if (coder == Coder::integer) {
    stochastic ? launch<T, Coder::integer, true>(a, stream) : launch<T, Coder::integer, false>(a, stream);
  } else {
    coder == Coder::e4m3 ? launch<T, Coder::e4m3, false>(a, stream) : launch<T, Coder::e5m2, false>(a, stream);
  }
}

}  // namespace

bool launch_rows(const TileArgs& a, Coder coder, bool stochastic, cudaStream_t stream) {
  if (a.row.C > kMostThreads * kMostVectors * 8) return false;
  a.as_bf16 ? launch<float>(a, coder, stochastic, stream) : launch<bf16>(a, coder, stochastic, stream);
  return true;
}

}  // namespace halftone::device
