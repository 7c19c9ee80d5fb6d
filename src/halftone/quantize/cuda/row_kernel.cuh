#pragma once
#include "halftone/quantize/cuda/tile_pass.cuh"

namespace halftone::device {

// Maximum over the thread block.
__device__ __forceinline__ uint32_t block_max(uint32_t a, uint32_t* shared) {
  a = __reduce_max_sync(0xFFFFFFFFu, a);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = a;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? shared[lane] : 0u);
}
// Largest magnitude of a thread's vectors, as bits of an fp32.
template <int kVectors>
__device__ __forceinline__ uint32_t amax_of_all(const Vec8<bf16> (&x)[kVectors]) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    m = max_magnitudes(m, max_magnitudes(max_magnitudes(x[i].w[0], x[i].w[1]), max_magnitudes(x[i].w[2], x[i].w[3])));
  }
  m &= 0x7FFF7FFFu;
  return max(m << 16, m & 0xFFFF0000u);
}
template <int kVectors>
__device__ __forceinline__ uint32_t amax_of_all(const Vec8<float> (&x)[kVectors]) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) m = max(m, amax_of(x[i]));
  return m;
}
// Of the elements without and with a sign: maxima of the bits as signed and as unsigned numbers.
template <int kVectors>
__device__ __forceinline__ void amax_by_sign(const Vec8<bf16> (&x)[kVectors], uint32_t& positive, uint32_t& negative) {
  uint32_t p = 0, n = 0x80008000u;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) p = __vimax3_s16x2(p, x[i].w[k], x[i].w[k + 1]), n = __vimax3_u16x2(n, x[i].w[k], x[i].w[k + 1]);
  }
  n &= 0x7FFF7FFFu;
  positive = max(p << 16, p & 0xFFFF0000u), negative = max(n << 16, n & 0xFFFF0000u);
}
template <int kVectors>
__device__ __forceinline__ void amax_by_sign(const Vec8<float> (&x)[kVectors], uint32_t& positive, uint32_t& negative) {
  int p = 0;
  uint32_t n = 0x80000000u;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) p = max(p, __float_as_int(x[i].v[k])), n = max(n, __float_as_uint(x[i].v[k]));
  }
  positive = static_cast<uint32_t>(p), negative = n & 0x7FFFFFFFu;
}

// Blocks of 32 that four neighbouring lanes share, one to each of their kVectors vectors: a lane owns those of kCount of them,
// with fewer than four vectors every lane all.
template <int kVectors>
struct QuadBlocks {
  static constexpr bool kShared = kVectors >= 4;
  static constexpr int kCount = kShared ? kVectors / 4 : kVectors;
  static __device__ __forceinline__ int first(int thread) {
    return kShared ? kVectors / 2 * (thread & 1) + kVectors / 4 * (thread >> 1 & 1) : 0;
  }
  static __device__ __forceinline__ bool writes(int thread) { return kShared || (thread & 3) == 0; }
  // Largest over the four lanes; the first kCount words are those of the own blocks.
  static __device__ __forceinline__ void reduce(uint32_t (&amax)[kVectors], int thread) {
    if constexpr (kShared) {
      halve<kVectors>(amax, (thread & 1) != 0, 1);
      halve<kVectors / 2>(amax, (thread & 2) != 0, 2);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) amax[i] = max_over(amax[i], 1 | 2);
    }
  }
  static __device__ __forceinline__ float fetch(const float (&own)[kCount], int i) {
    return kShared ? __shfl_sync(0xFFFFFFFFu, own[i % kCount], owner(i), 4) : own[i % kCount];
  }
  static __device__ __forceinline__ uint32_t fetch(const ValueWords (&own)[kCount], uint32_t ValueWords::*word, int i) {
    return kShared ? __shfl_sync(0xFFFFFFFFu, own[i % kCount].*word, owner(i), 4) : own[i % kCount].*word;
  }

 private:
  static __device__ __forceinline__ int owner(int i) { return i / (kVectors / 2 + !kShared) % 2 | (i / kCount % 2) << 1; }
  template <int kWords>
  static __device__ __forceinline__ void halve(uint32_t (&w)[kVectors], bool upper, int stride) {
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const uint32_t give = upper ? w[i] : w[i + kWords / 2], keep = upper ? w[i + kWords / 2] : w[i];
      w[i] = max(keep, __shfl_xor_sync(0xFFFFFFFFu, give, stride));
    }
  }
};

// Thread blocks that share a multiprocessor at least, where the compiler would take more registers; 0: as it likes.
template <class T>
constexpr int row_blocks_on_sm(Coder coder, bool stochastic, int vectors) {
  return sizeof(T) == 2 && coder == Coder::integer && stochastic && vectors == 8 ? 2 : 0;
}

// The row copy where a scale needs a whole row: a thread block holds one row in registers, so that it is read once. kBlock 0:
// row scales; 32: e2m1 blocks folded into e4m3 against the row's largest block. kVectors: of eight elements, per thread.
// kForm: folded, packed (int4) or any.
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm, int kVectors>
__global__ void __launch_bounds__(kVectors >= 4 ? kRowThreads : 256, row_blocks_on_sm<T>(kCoder, kStochastic, kVectors))
    row_kernel(const __grid_constant__ RowArgs a) {
  __shared__ uint32_t shared[2][kRowThreads / 32];
  const CopyArgs& d = a.copy;
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* source = static_cast<const T*>(a.x) + row * a.ld;
  Vec8<T> x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (thread + i * threads) * 8;
    x[i] = {};
    if (column < a.cols) load8(source + column, x[i]);
  }
  // The first draws follow from positions alone: they come while the elements do.
  constexpr int kAtOnce = kVectors < 4 ? kVectors : kVectors == 8 ? 2 : 4;  // of eight, few: registers for more thread blocks
  TileDraws<0> draws;
  const StepWords step = kStochastic ? step_words(d.draws) : StepWords{};
  const auto draw = [&](int i) {
    draw8<kAtOnce>(d.draws, step, d.draws.first + row * d.draws.row + thread + i * threads, threads, draws.v + i);
  };
  constexpr bool kEarly = kStochastic && sizeof(T) == 2;
  if constexpr (kEarly) draw(0);
  using Blocks = QuadBlocks<kVectors>;
  constexpr int kOwn = kBlock == 0 ? 1 : Blocks::kCount;
  float factor[kOwn];
  ValueWords value[kOwn];
  if constexpr (kBlock == 0) {
    ScalePair s;
    if (kCoder == Coder::integer && d.element == Element::int4) {
      uint32_t positive, negative;
      amax_by_sign(x, positive, negative);
      positive = block_max(positive, shared[0]), negative = block_max(negative, shared[1]);
      s = int4_scale(positive, negative, d.scale_floor);
    } else {
      s = group_rule<kCoder>(d, block_max(amax_of_all(x), shared[0]), 0);
    }
    if (thread == 0 && d.scales != nullptr) static_cast<float*>(d.scales)[row] = s.scale;
    factor[0] = s.inv, value[0] = {__float_as_uint(1.0f), 0, 0};
  } else {
    uint32_t amax = 0, vector_amax[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      vector_amax[i] = amax_of(x[i]);
      amax = max(amax, vector_amax[i]);
    }
    const uint32_t reference = mx_byte(d.mx, block_max(amax, shared[0]));
    if (thread == 0) d.fold_scale[row] = reference == 255 ? quiet_nan() : fold_scale(Float::e4m3, static_cast<int>(reference) - 127);
    Blocks::reduce(vector_amax, thread);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const BlockResult b = block_rule<kStep, kBlock>(d, vector_amax[j], {1, 1}, 1);
      const int column =
          ((thread & ~3) + (Blocks::first(thread) + j) * threads) * 8;  // of the block, which may end before the lane's vector
      factor[j] = b.factor, value[j] = fold_words<Float::e4m3>(b.byte, reference);
      if (d.scales != nullptr && Blocks::writes(thread) && column < d.C) {
        static_cast<uint8_t*>(d.scales)[int64_t{row} * d.blocks + column / kBlock] = static_cast<uint8_t>(b.byte);
      }
    }
  }
  if (d.outer != nullptr && row == 0 && thread == 0) *d.outer = 1;
  draws.constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);
  Outputs<kForm, int64_t> out(d, int64_t{row} * d.C + thread * 8, threads * 8);
  [[maybe_unused]] const uint32_t digit = __shfl_sync(0xFFFFFFFFu, 16u, 0);  // unknown to the compiler, see multiply_add
  const auto write = [&]<bool kClamp>() {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = thread + i * threads;
      if constexpr (kStochastic) {
        if (i % kAtOnce == 0 && (!kEarly || i != 0)) draw(i);
      }
      float by = factor[0];
      ValueWords words = value[0];
      if constexpr (kBlock != 0) {
        by = Blocks::fetch(factor, i);
        words.first = Blocks::fetch(value, &ValueWords::first, i), words.second = Blocks::fetch(value, &ValueWords::second, i);
        if (out.has(kLost)) words.below = Blocks::fetch(value, &ValueWords::below, i);
      }
      if constexpr (kCoder == Coder::integer && kForm == Form::packed && !kClamp) {
        uint32_t s[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) s[k] = round_integer<kInt4Bias>(element(x[i], k) * by, draws.template at<kCoder>(i, k));
        if (vector * 8 < d.C) *reinterpret_cast<uint32_t*>(out.packed) = by != by ? 0u : pack_int4(s, digit);
        out.next();
        continue;
      }
      const Codes8 q =
          encode8<kCoder, kStep, kStochastic, kClamp>(x[i], {by, 0}, d.low, d.high, [&](int e) { return draws.template at<kCoder>(i, e); });
      if (vector * 8 < d.C) emit8<kCoder, place_of(kStep, kStochastic)>(out, 0, d.lost, q, by != by, words);
      out.next();
    }
  };
  if constexpr (kCoder == Coder::integer && kStochastic && sizeof(T) == 2) {
    if (d.in_range) return write.template operator()<false>();
  }
  write.template operator()<true>();
}

template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_rows(const RowArgs& a, cudaStream_t stream) {
  const int vectors = (a.copy.C + 7) / 8;
  const auto go = [&](auto kernel, int each) {
    const int threads = ((vectors + each - 1) / each + 31) / 32 * 32;
    kernel<<<static_cast<unsigned>(a.copy.R), static_cast<unsigned>(threads), 0, stream>>>(a);
  };
  // Four vectors a thread leave registers for many warps, eight for more thread blocks, which overlap each other's stages.
  constexpr int kMost4 = kBlock == 0 || kStochastic ? 1024 : kRowThreads * 4;
  if (vectors <= 256) return go(row_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, 1>, 1);
  if (vectors <= 512) return go(row_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, 2>, 2);
  if (vectors <= kMost4) return go(row_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, 4>, 4);
  go(row_kernel<T, kCoder, kStep, kBlock, kStochastic, kForm, 8>, 8);
}

}  // namespace halftone::device
