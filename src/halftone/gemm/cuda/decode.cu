#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/gemm/decode_cuda.h"

namespace halftone::gemm {
namespace {

constexpr int kThreads = 256, kElements = 8;  // per thread and row; block scales are at least this wide
constexpr int64_t kMostBlocks = 4096;

__device__ void store_one(float v, int8_t& out) { out = static_cast<int8_t>(v); }
template <class T>
__device__ void store_one(float v, T& out) {
  device::from_f32(v, out);
}

// Threads with the same x decode the same eight columns in every row, so per-column work, divisions above all, is done once.
template <class T>
__global__ void decode_kernel(DecodeCopy p) {
  __shared__ float values[256], scales[256];
  const QuantizedCopy& c = p.copy;
  const OperandSpec& s = c.spec;
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  values[thread] = code_value(s.element, static_cast<uint8_t>(thread));
  scales[thread] = has_byte_scales(s.scale) ? decode_block_scale(s.scale, static_cast<uint8_t>(thread)) : 1.0f;
  __syncthreads();
  const bool full = p.what == Decode::everything, uint4 = s.element == Element::uint4;
  const int64_t cols = p.cols, first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kElements;
  if (first >= cols) return;
  const int64_t last = first + kElements < cols ? first + kElements : cols, b = s.block > 0 ? first / s.block : 0;
  // The scale index of row r is scale_column + (r or the tile row) * scale_row.
  const bool tile = s.granularity == Granularity::tile;
  const int64_t scale_column = scale_index(s, cols, 0, b), scale_row = scale_index(s, cols, tile ? s.block : 1, b) - scale_column;
  const bool vector = last - first == kElements && cols % kElements == 0;
  for (int64_t r = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; r < p.rows; r += int64_t{gridDim.y} * blockDim.y) {
    const int64_t at =
        scale_column + (tile ? static_cast<int64_t>(static_cast<uint32_t>(r) / static_cast<uint32_t>(s.block)) : r) * scale_row;
    const float byte = has_byte_scales(s.scale) ? scales[static_cast<const uint8_t*>(c.scales)[at]] : 1.0f;
    // Calls code_factor, which divides, only if there is more to multiply than a byte scale.
    const float factor = full || !has_byte_scales(s.scale) ? code_factor(c, full, cols, r, b, byte) : byte;
    const float zero = uint4 ? c.zeros[at] : -0.0f;
    T* out = static_cast<T*>(p.out) + r * cols;
    if (vector) {
      device::Vec<T, kElements> v;
      uint8_t codes[kElements];
      if (c.codes != nullptr) {
        *reinterpret_cast<uint2*>(codes) = *reinterpret_cast<const uint2*>(c.codes + r * cols + first);
      } else {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(c.packed + (r * cols + first) / 2);
        for (int j = 0; j < kElements; ++j) codes[j] = word >> (4 * j) & 0xF;
      }
      for (int j = 0; j < kElements; ++j) store_one(zero + values[codes[j]] * factor, v.value[j]);
      device::store(out + first, v);
      continue;
    }
    for (int64_t j = first; j < last; ++j) {
      const uint8_t code =
          c.codes != nullptr ? c.codes[r * cols + j] : static_cast<uint8_t>(c.packed[r * (cols / 2) + j / 2] >> (j % 2 * 4) & 0xF);
      store_one(zero + values[code] * factor, out[j]);
    }
  }
}

}  // namespace
}  // namespace halftone::gemm

const char* halftone_cuda_decode(const halftone::gemm::DecodeCopy* what, void* stream) {
  using namespace halftone;
  const gemm::DecodeCopy& p = *what;
  if (p.copy.codes == nullptr && p.copy.packed == nullptr) return "decode: the copy has neither codes nor packed codes";
  const bool aligned = reinterpret_cast<uintptr_t>(p.copy.codes) % 8 == 0 && reinterpret_cast<uintptr_t>(p.copy.packed) % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
  if (!aligned) return "decode: expected codes and output aligned to 16 bytes";
  if (p.rows * p.cols == 0) return nullptr;
  const auto across = static_cast<unsigned>(device::ceil_div(p.cols, int64_t{gemm::kElements}));
  const unsigned x = std::min<unsigned>(gemm::kThreads, std::bit_ceil(across)), y = gemm::kThreads / x;
  const dim3 threads(x, y);
  dim3 blocks((across + x - 1) / x);
  blocks.y = static_cast<unsigned>(std::clamp(gemm::kMostBlocks / blocks.x, int64_t{1}, device::ceil_div(p.rows, int64_t{y})));
  const auto s = static_cast<cudaStream_t>(stream);
  switch (p.type) {
    case DType::f32:
      gemm::decode_kernel<float><<<blocks, threads, 0, s>>>(p);
      break;
    case DType::bf16:
      gemm::decode_kernel<bf16><<<blocks, threads, 0, s>>>(p);
      break;
    case DType::s8:
      gemm::decode_kernel<int8_t><<<blocks, threads, 0, s>>>(p);
      break;
    default:
      return "decode: expected values in bf16, f32 or s8";
  }
  return device::error_text(cudaGetLastError());
}
