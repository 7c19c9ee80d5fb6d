#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/rotate_column.cuh"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/cuda/store_maxima.cuh"

namespace halftone::device {
namespace {

constexpr int kRotatedThreads = 512;
constexpr int kChunkRows = 128;  // of a warp, with the maxima of columns

__device__ __forceinline__ void load_pair_once(const void* p, float2& r, uint64_t policy) {
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.f32 {%0, %1}, [%2], %3;" : "=f"(r.x), "=f"(r.y) : "l"(p), "l"(policy));
}

// 32 rows of 128 bytes a warp, of which a lane asks for eighths of every fourth and reads two columns.
struct RotatedRing : Ring<2, 8, kRotatedThreads> {
  using Ring::Ring;
  // Where row r begins.
  __device__ __forceinline__ uint32_t row(int r, int lane) const {
    return at(stage, r / 4) - static_cast<uint32_t>(lane * 16) + static_cast<uint32_t>(r % 4 * 128);
  }
  __device__ __forceinline__ void columns(int lane, uint32_t (&w)[32]) const {
    const uint32_t from = row(0, lane) + static_cast<uint32_t>(lane * 4);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      asm volatile("ld.volatile.shared.u32 %0, [%1];"
                   : "=r"(w[i])
                   : "r"(from + static_cast<uint32_t>(i / 4 * (kRotatedThreads * 16) + i % 4 * 128))
                   : "memory");
    }
  }
};

// Asks for a step: the 32 rows from `first` on of the 64 columns from `left` on.
__device__ __forceinline__ void ask_step(const RotatedRing& ring, int stage, const StatisticsArgs& a, int left, int first, int lane) {
  const int column = left + (lane & 7) * 8, row = first + (lane >> 3);
  const bf16* from = static_cast<const bf16*>(a.x) + int64_t{row} * a.ld + column;
  const int valid = column < a.cols ? (a.rows - row + 3) / 4 : 0;
  // By a branch: the policy of each would have to be moved to uniform registers.
  if (first >= a.keep_from) {
    ring.ask(stage, from, a.ld * 8, valid, l2_policy(true));
  } else {
    ring.ask(stage, from, a.ld * 8, valid, l2_policy(false));
  }
}

// As fp32, of the ring's oldest step: a lane has a whole row, whose eighths it reads in an order of its own, so that lanes meet different
// banks.
__device__ __forceinline__ uint32_t largest_of_row(const RotatedRing& ring, int lane) {
  const uint32_t from = ring.row(lane, lane) + static_cast<uint32_t>((lane & 7) * 16);
  uint32_t m[2] = {};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint4 v = ring.read(from ^ i * 16);
    m[0] = max_magnitudes(max_magnitudes(m[0], v.x), v.y), m[1] = max_magnitudes(max_magnitudes(m[1], v.z), v.w);
  }
  const uint32_t both = max_magnitudes(m[0], m[1]);
  return max_magnitudes(both, __byte_perm(both, 0u, 0x1032)) << 16 & 0x7FFF0000u;
}

// The largest magnitude of a rotated column before the factor, with an arbitrary sign. The larger magnitude of a sum and a difference is
// the sum of magnitudes. (Of two infinities not NaN, but as much a poison.)
template <int kWidth>
__device__ __forceinline__ float largest_rotated(float (&v)[kWidth]) {
  butterflies<kWidth, kWidth / 2>(v);
  float largest[2] = {};  // of odd rows for themselves, for a shorter chain
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) largest[i & 1] = max_magnitudes(largest[i & 1], fabsf(v[i]) + fabsf(v[i + kWidth / 2]));
  return max_magnitudes(largest[0], largest[1]);
}

// The maxima of a tensor before and after the rotation: a lane has 32 rows of two columns, so that nothing is exchanged. Rounding
// to bf16 and the factor n^(-1/2) are monotonic and wait for the maximum.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRotatedThreads, 1) rotated_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr bool kRing = sizeof(T) == 2;
  constexpr int kWarps = kRotatedThreads / 32, kRows = kRing ? 32 : kWidth;
  using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, float2>;
  extern __shared__ uint4 ring_memory[];
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64), chunks = static_cast<unsigned>((a.rows + kRows - 1) / kRows);
  const unsigned items = strips * chunks, stride = gridDim.x * kWarps;
  [[maybe_unused]] const auto bytes = static_cast<uint32_t>(a.ld * sizeof(T));
  __shared__ RowFlips of_warps[kWarps];
  RowFlips& flips = of_warps[threadIdx.x >> 5];
  if (a.wait_first) wait_for_primary();
  flips.fill(a, kWidth, lane);
  [[maybe_unused]] uint32_t pairs = 0;
  float plain = 0, rotated = 0;
  start_dependents();
  Pair w[kRows];
  unsigned item = blockIdx.x + gridDim.x * (threadIdx.x >> 5);
  RotatedRing ring(ring_memory);
  unsigned asked = item;
  int asked_strip = static_cast<int>(item % strips), asked_chunk = static_cast<int>(item / strips);
  const int stride_strips = static_cast<int>(stride % strips), stride_chunks = static_cast<int>(stride / strips);
  const auto ask = [&](int stage) {
    if (asked < items) {
      const int column = asked_strip * 64 + (lane & 7) * 8, top = asked_chunk * kRows, row = top + (lane >> 3);
      ring.ask(stage, static_cast<const T*>(a.x) + int64_t{row} * a.ld + column, a.ld * 8, column < a.cols ? (a.rows - row + 3) / 4 : 0,
               l2_policy(top >= a.keep_from));
      asked_strip += stride_strips, asked_chunk += stride_chunks;
      if (asked_strip >= static_cast<int>(strips)) asked_strip -= static_cast<int>(strips), ++asked_chunk;
      asked += stride;
    }
    end_copy_group();
  };
  if constexpr (kRing) {
#pragma unroll 1
    for (int i = 0; i < ring.stages; ++i) ask(i);
  }
#pragma unroll 1
  while (item < items) {
    if constexpr (kRing) {
      ring.wait();
      __syncwarp();
      ring.columns(lane, w);
      __syncwarp();
      ask(ring.stage);
      ring.next();
    } else {
      const int column = static_cast<int>(item % strips) * 64 + lane * 2, row = static_cast<int>(item / strips) * kRows;
      const auto* source = static_cast<const uint8_t*>(a.x) + (row * a.ld + column) * static_cast<int64_t>(sizeof(T));
      const int valid = column < a.cols ? a.rows - row : 0;
      const uint64_t policy = l2_policy(row >= a.keep_from);
      if (__all_sync(0xFFFFFFFFu, valid >= kRows)) {
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) load_pair_once(source + uint64_t{bytes} * i, w[i], policy);
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) {
          w[i] = {};
          if (static_cast<int>(i) < valid) load_pair_once(source + uint64_t{bytes} * i, w[i], policy);
        }
      }
    }
    item += stride;
    if (a.tensor != nullptr) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if constexpr (sizeof(T) == 2) pairs = max_magnitudes(pairs, w[i]);
        if constexpr (sizeof(T) == 4) plain = max_magnitudes(max_magnitudes(plain, w[i].x), w[i].y);
      }
    }
#pragma unroll
    for (int first = 0; first < kRows; first += kWidth) {
      float v[kWidth];
      const auto rotate_half = [&](auto half) {
        flip_column<kWidth, half.value>(w + first, flips.words, 65536u, v);
        rotated = max_magnitudes(rotated, largest_rotated(v));
      };
      rotate_half(std::integral_constant<int, 0>{});
      rotate_half(std::integral_constant<int, 1>{});
    }
  }
  rotated = fabsf(rotated) * hadamard_norm(kWidth);
  uint32_t whole = __float_as_uint(plain) & 0x7FFFFFFFu;
  if constexpr (sizeof(T) == 2) {
    whole = max(pairs << 16 & 0x7FFF0000u, pairs & 0x7FFF0000u);
    rotated = __bfloat162float(__float2bfloat16_rn(rotated));
  }
  if (a.tensor != nullptr) store_part(a.tensor, whole);
  store_part(a.rotated, __float_as_uint(rotated));
}
// Bits, as fp32, of the magnitude that a rotated bf16 of `largest` before the factor has.
template <int kWidth>
__device__ __forceinline__ uint32_t rotated_amax(float largest) {
  const __nv_bfloat16 rounded = __float2bfloat16_rn(largest * hadamard_norm(kWidth));
  return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&rounded)) << 16;
}
// The same with the maxima of rows before and of columns after the rotation. Warps take chunks of 128 x 64 elements in turn.
template <int kWidth>
__global__ void __launch_bounds__(kRotatedThreads, 1) rotated_columns_kernel(const __grid_constant__ StatisticsArgs a) {
  constexpr int kWarps = kRotatedThreads / 32, kRows = 32;
  extern __shared__ __align__(128) uint8_t rows_memory[];
  RotatedRing ring(rows_memory);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto strips = static_cast<unsigned>((a.cols + 63) / 64), chunks = static_cast<unsigned>((a.rows + kChunkRows - 1) / kChunkRows);
  const unsigned items = strips * chunks, stride = gridDim.x * kWarps;
  __shared__ RowFlips of_warps[kWarps];
  RowFlips& flips = of_warps[threadIdx.x >> 5];
  if (a.wait_first) wait_for_primary();
  flips.fill(a, kWidth, lane);
  uint32_t plain = 0;
  float rotated = 0;
  start_dependents();
  const unsigned first_item = blockIdx.x + gridDim.x * (threadIdx.x >> 5);
  // Of the step to be asked for next.
  unsigned asked = first_item;
  int asked_left = static_cast<int>(asked % strips) * 64, asked_row = static_cast<int>(asked / strips) * kChunkRows;
  const auto ask = [&](int stage) {
    if (asked < items) {
      ask_step(ring, stage, a, asked_left, asked_row, lane);
      asked_row += kRows;
      if (asked_row % kChunkRows == 0 || asked_row >= a.rows) {
        asked += stride;
        asked_left = static_cast<int>(asked % strips) * 64, asked_row = static_cast<int>(asked / strips) * kChunkRows;
      }
    }
    end_copy_group();
  };
#pragma unroll 1
  for (int i = 0; i < ring.stages; ++i) ask(i);
  wait_for_primary();  // what is cleared may be written
  for (unsigned item = first_item; item < items; item += stride) {
    const int left = static_cast<int>(item % strips) * 64, top = static_cast<int>(item / strips) * kChunkRows;
    float columns[2] = {};
#pragma unroll 1
    for (int row = top; row < min(top + kChunkRows, a.rows); row += kRows) {
      ring.wait();
      __syncwarp();
      uint32_t w[kRows];
      ring.columns(lane, w);
      if (a.row != nullptr) {
        const uint32_t amax = largest_of_row(ring, lane);
        if (row + lane < a.rows && amax != 0) raise(a.row + row + lane, amax);
      }
      __syncwarp();
      ask(ring.stage);
      ring.next();
      if (a.tensor != nullptr) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) plain = max_magnitudes(plain, w[i]);
      }
      const auto rotate_half = [&](auto half) {
#pragma unroll
        for (int first = 0; first < kRows; first += kWidth) {
          float v[kWidth];
          flip_column<kWidth, half.value>(w + first, flips.words, 65536u, v);
          columns[half.value] = max_magnitudes(columns[half.value], largest_rotated(v));
        }
      };
      rotate_half(std::integral_constant<int, 0>{});
      rotate_half(std::integral_constant<int, 1>{});
    }
    const int column = left + lane * 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      columns[j] = fabsf(columns[j]), rotated = max_magnitudes(rotated, columns[j]);
      const uint32_t amax = rotated_amax<kWidth>(columns[j]);
      if (column + j < a.cols && amax != 0) atomicMax(a.rotated_column + column + j, amax);
    }
  }
  plain &= 0x7FFF7FFFu;
  const uint32_t amax = rotated_amax<kWidth>(fabsf(rotated));
  if (a.tensor != nullptr) store_part(a.tensor, max(plain << 16, plain & 0xFFFF0000u));
  if (a.rotated != nullptr) store_part(a.rotated, amax);
}

// The same for large matrices and columns rotated by 32, where one operation on memory for a row and 64 columns takes longer than the
// loads: the warps of a thread block have chunks beside each other, put the maxima of their rows together in shared memory, and raise a row
// once for 1024 columns. Smaller matrices end sooner without a barrier a chunk.
constexpr int kTogetherRows = 256;
// How far apart a warp's chunks are, and where a row ends. By the host: registers are scarce.
struct Chunks {
  int strips, stride_left, stride_top, past;
  explicit Chunks(int cols) : strips((cols + 63) / 64), past(strips * 64) {
    constexpr int kStride = kStatisticsParts * kRotatedThreads / 32;
    stride_left = kStride % strips * 64, stride_top = kStride / strips * kTogetherRows;
  }
  // The warp's next one.
  __device__ __forceinline__ void advance(int& left, int& top) const {
    left += stride_left, top += stride_top;
    if (left >= past) left -= past, top += kTogetherRows;
  }
};
// c.strips is a multiple of the thread block's warps: all have the same rows.
__global__ void __launch_bounds__(kRotatedThreads, 1)
    rows_together_kernel(const __grid_constant__ StatisticsArgs a, const __grid_constant__ Chunks c) {
  constexpr int kWarps = kRotatedThreads / 32, kRows = 32;
  extern __shared__ __align__(128) uint8_t rows_memory[];
  RotatedRing ring(rows_memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  __shared__ RowFlips of_warps[kWarps];
  // Of this turn and the last.
  __shared__ uint32_t block_rows[2][kTogetherRows];
  static_assert(2 * kTogetherRows == kRotatedThreads);
  block_rows[0][thread] = 0;
  __syncthreads();
  RowFlips& flips = of_warps[thread >> 5];
  flips.fill(a, kRows, lane);
  start_dependents();
  const int item = static_cast<int>(blockIdx.x) * kWarps + (thread >> 5);
  int left = item % c.strips * 64, top = item / c.strips * kTogetherRows, turn = 0;
  // Of the step to be asked for next.
  int asked_left = left, asked_top = top, asked_row = top;
  const auto ask = [&](int stage) {
    if (asked_row < a.rows) {
      ask_step(ring, stage, a, asked_left, asked_row, lane);
      asked_row += kRows;
      if (asked_row == asked_top + kTogetherRows || asked_row >= a.rows) c.advance(asked_left, asked_top), asked_row = asked_top;
    }
    end_copy_group();
  };
#pragma unroll 1
  for (int i = 0; i < ring.stages; ++i) ask(i);
  wait_for_primary();  // what is cleared may be written
#pragma unroll 1
  for (; top < a.rows; c.advance(left, top), turn ^= 1) {
    float columns[2] = {};
    const auto turn_rows = static_cast<uint32_t>(__cvta_generic_to_shared(block_rows[turn] + lane));
    const int end = min(top + kTogetherRows, a.rows);
#pragma unroll 1
    for (int row = top; row < end; row += kRows) {
      ring.wait();
      __syncwarp();
      uint32_t w[kRows];
      ring.columns(lane, w);
      asm volatile("red.relaxed.cta.shared.max.u32 [%0], %1;" ::"r"(turn_rows + static_cast<uint32_t>(row - top) * 4),
                   "r"(largest_of_row(ring, lane))
                   : "memory");
      __syncwarp();
      ask(ring.stage);
      ring.next();
      const auto rotate_half = [&](auto half) {
        float v[kRows];
        flip_column<kRows, half.value>(w, flips.words, 65536u, v);
        columns[half.value] = max_magnitudes(columns[half.value], largest_rotated(v));
      };
      rotate_half(std::integral_constant<int, 0>{});
      __syncwarp();  // or both halves are rotated at once, for which there are not the registers
      rotate_half(std::integral_constant<int, 1>{});
    }
    const int column = left + lane * 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t amax = rotated_amax<kRows>(fabsf(columns[j]));
      if (column + j < a.cols && amax != 0) raise(a.rotated_column + column + j, amax);
    }
    __syncthreads();
    if (thread < kTogetherRows) {
      const uint32_t amax = block_rows[turn][thread];
      if (top + thread < a.rows && amax != 0) raise(a.row + top + thread, amax);
      block_rows[turn][thread] = 0;
    }
  }
}

}  // namespace

cudaError_t collect_rotated(const StatisticsArgs& given, bool early, cudaStream_t stream) {
  StatisticsArgs a = given;
  // What stays in the L2 cache takes the place of what the kernel before wrote, which must go to DRAM then, while that is busy. A kernel
  // that leaves DRAM time reads all of x from there.
  if (a.slow_next) a.keep_from = a.rows;
  const bool wide = a.hadamard == 32;
  if (a.type == DType::bf16) {
    return launch_ring(wide ? rotated_kernel<bf16, 32> : rotated_kernel<bf16, 16>, kStatisticsParts, kRotatedThreads, RotatedRing::kBytes,
                       early, stream, a);
  }
  const DependentLaunch how(dim3(kStatisticsParts), kRotatedThreads, stream, early);
  return cudaLaunchKernelEx(&how.config, wide ? rotated_kernel<float, 32> : rotated_kernel<float, 16>, a);
}
cudaError_t collect_rotated_columns(const StatisticsArgs& a, cudaStream_t stream) {
  const Chunks chunks(a.cols);
  if (a.row != nullptr && a.hadamard == 32 && a.tensor == nullptr && a.rotated == nullptr && !a.wait_first &&
      chunks.strips % (kRotatedThreads / 32) == 0 && !starts_early(a.type, a.rows, a.cols)) {
    return launch_ring(rows_together_kernel, kStatisticsParts, kRotatedThreads, RotatedRing::kBytes, true, stream, a, chunks);
  }
  auto* kernel = a.hadamard == 32 ? rotated_columns_kernel<32> : rotated_columns_kernel<16>;
  return launch_ring(kernel, kStatisticsParts, kRotatedThreads, RotatedRing::kBytes, true, stream, a);
}

}  // namespace halftone::device
