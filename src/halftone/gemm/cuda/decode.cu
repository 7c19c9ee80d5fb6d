#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/vec.cuh"
#include "halftone/gemm/decode_cuda.h"

namespace halftone::gemm {
namespace {

constexpr int kThreads = 256, kElements = 8;  // per thread and turn; no block scale is narrower
constexpr int64_t kMostBlocks = 4096;

__device__ void store_one(float v, int8_t& out) { out = static_cast<int8_t>(v); }
template <class T>
__device__ void store_one(float v, T& out) {
  device::from_f32(v, out);
}

template <class T>
__global__ void decode_kernel(DecodeCopy p) {
  __shared__ float values[256], scales[256];
  const QuantizedCopy& c = p.copy;
  const OperandSpec& s = c.spec;
  values[threadIdx.x] = code_value(s.element, static_cast<uint8_t>(threadIdx.x));
  scales[threadIdx.x] = has_byte_scales(s.scale) ? decode_block_scale(s.scale, static_cast<uint8_t>(threadIdx.x)) : 1.0f;
  __syncthreads();
  const bool full = p.what == Decode::everything, uint4 = s.element == Element::uint4;
  const int64_t cols = p.cols, across = device::ceil_div(cols, int64_t{kElements}), total = p.rows * across;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t r = i / across, first = i % across * kElements, last = first + kElements < cols ? first + kElements : cols;
    const int64_t b = s.block > 0 ? first / s.block : 0, at = scale_index(s, cols, r, b);
    const float byte = has_byte_scales(s.scale) ? scales[static_cast<const uint8_t*>(c.scales)[at]] : 1.0f;
    const float factor = code_factor(c, full, cols, r, b, byte), zero = uint4 ? c.zeros[at] : 0.0f;
    const auto code = [&](int64_t j) {
      return c.codes != nullptr ? c.codes[r * cols + j] : static_cast<uint8_t>(c.packed[r * (cols / 2) + j / 2] >> (j % 2 * 4) & 0xF);
    };
    T* out = static_cast<T*>(p.out) + r * cols;
    if (last - first == kElements && cols % kElements == 0) {
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
    for (int64_t j = first; j < last; ++j) store_one(zero + values[code(j)] * factor, out[j]);
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
  const int64_t work = p.rows * device::ceil_div(p.cols, int64_t{gemm::kElements});
  const auto blocks = static_cast<unsigned>(std::min(device::ceil_div(work, int64_t{gemm::kThreads}), gemm::kMostBlocks));
  const auto s = static_cast<cudaStream_t>(stream);
  switch (p.type) {
    case DType::f32:
      gemm::decode_kernel<float><<<blocks, gemm::kThreads, 0, s>>>(p);
      break;
    case DType::bf16:
      gemm::decode_kernel<bf16><<<blocks, gemm::kThreads, 0, s>>>(p);
      break;
    case DType::s8:
      gemm::decode_kernel<int8_t><<<blocks, gemm::kThreads, 0, s>>>(p);
      break;
    default:
      return "decode: expected values in bf16, f32 or s8";
  }
  return device::error_text(cudaGetLastError());
}
