#include "mix.cuh"
#include "quantize_floor.h"

// The least instructions of MXFP4 packed of bf16 with stochastic rounding, both copies (docs/quantize_cuda.md), and the memory
// that the scheme reads and writes, in whole lines: no scale is made, nothing is transposed, no warp waits for another. What it stores
// means nothing.
namespace halftone {
namespace {

using Least = Mix<35, 35, 47, 18, 0, 16, 12, 2, 2>;
constexpr int kWarps = 4, kOnSm = 6, kTurns = 4, kRegisters = 6;  // thread blocks a multiprocessor: kOnSm at once, in kTurns turns

__global__ void __launch_bounds__(kWarps * 32, kOnSm) least_kernel(const uint4* x, uint4* row, uint4* transposed, uint8_t* row_scales,
                                                                   uint8_t* transposed_scales, int items, uint32_t by, uint32_t key) {
  __shared__ uint32_t memory[kWarps][kRegisters * 32];
  const auto lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory[warp])) + lane * 4;
  const auto stride = static_cast<int>(gridDim.x) * kWarps;
  int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(warp);
  if (item >= items) return;
  x += int64_t{item} * 128 + lane;
  row += int64_t{item} * 32 + lane, transposed += int64_t{item} * 32 + lane;
  row_scales += int64_t{item} * 32 + lane, transposed_scales += int64_t{item} * 32 + lane;
  State<kRegisters> s;
  for (uint32_t j = 0; j < kRegisters; ++j) {
    s.value[j] = lane * (j + 3), s.high[j] = lane + j, s.low[j] = lane ^ j, s.word[j] = lane, s.product[j] = lane * 7 + j;
    s.pair[j] = lane + 9 + j, s.real[j] = static_cast<float>(lane + j);
  }
  // 32 elements of a lane at once, half of which are on their way while the other half is worked on.
  uint4 first[2], second[2];
  const auto load = [&](uint4(&to)[2], int at) { to[0] = __ldcs(x + at), to[1] = __ldcs(x + at + 32); };
  const auto work = [&](const uint4(&half)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t words[4] = {half[i].x, half[i].y, half[i].z, half[i].w};
      all<Least>(s, by, key, shared, words, std::make_index_sequence<Least::total>());
    }
  };
  load(first, 0);
#pragma unroll 1
  for (; item < items; item += stride) {
    load(second, 64);
    work(first);
    x += item + stride < items ? int64_t{stride} * 128 : 0;
    load(first, 0);
    work(second);
    __stcs(row, make_uint4(s.word[0], s.word[1], s.word[2], s.word[3]));
    __stcs(transposed, make_uint4(s.product[0], s.product[1], s.product[2], s.product[3]));
    *row_scales = static_cast<uint8_t>(s.pair[0]), *transposed_scales = static_cast<uint8_t>(s.pair[1]);
    row += int64_t{stride} * 32, transposed += int64_t{stride} * 32, row_scales += int64_t{stride} * 32,
        transposed_scales += int64_t{stride} * 32;
  }
  uint32_t left = 0;
  for (int j = 0; j < kRegisters; ++j) {
    left ^= s.value[j] ^ s.high[j] ^ s.low[j] ^ s.word[j] ^ s.product[j] ^ s.pair[j] ^ __float_as_uint(s.real[j]);
  }
  if (left == 0x12345678u) row_scales[0] = 1;  // nothing may be left out
}

}  // namespace

void run_least_packed(const void* x, int64_t rows, int64_t cols, void* row, void* transposed, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device), cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int64_t elements = rows * cols;
  auto *r = static_cast<uint8_t*>(row), *t = static_cast<uint8_t*>(transposed);
  const auto items = static_cast<int>(elements / 1024);
  least_kernel<<<multiprocessors * kOnSm * kTurns, kWarps * 32, 0, stream>>>(static_cast<const uint4*>(x), reinterpret_cast<uint4*>(r),
                                                                             reinterpret_cast<uint4*>(t), r + elements / 2,
                                                                             t + elements / 2, items, 0xD2511F53u, 0x9E3779B9u);
}

}  // namespace halftone
