#include "halftone/gemm/cuda/block_rows.h"

#include <cuda_fp8.h>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/gemm/cuda/scale_at.cuh"

namespace halftone::gemm {
namespace {

constexpr int kWarps = 8;

template <Numbers kNumbers>
__device__ void decode4(const uint8_t* codes, float (&out)[4]) {
  const uint32_t four = *reinterpret_cast<const uint32_t*>(codes);
  constexpr auto kKind = kNumbers == Numbers::e4m3 ? __NV_E4M3 : __NV_E5M2;
  for (int i = 0; i < 4; ++i) {
    out[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(four >> (8 * i)), kKind)));
  }
}

// One warp per column of D: a lane computes 4 of a block's 128 products; the block sum is multiplied by the block's two scales.
template <Numbers kA, Numbers kB, class T>
__global__ void block_rows_kernel(BlockRows what) {
  const Product& p = what.product;
  const int64_t n = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (n >= p.n) return;
  const int rows = static_cast<int>(p.m - what.first);
  const uint8_t* a_codes = static_cast<const uint8_t*>(p.a.data) + what.first * p.a.ld;
  const uint8_t* b_codes = static_cast<const uint8_t*>(p.b.data) + n * p.b.ld;
  float sum[kBlockRows] = {};
  for (int64_t block = 0; block * 128 < p.k; ++block) {
    const int64_t k = block * 128 + threadIdx.x * 4;
    if (k >= p.k) break;
    float b[4];
    decode4<kB>(b_codes + k, b);
    const float scale_b = scale_at(what.b, n, block);
    for (int row = 0; row < kBlockRows; ++row) {
      if (row >= rows) break;
      float a[4];
      decode4<kA>(a_codes + row * p.a.ld + k, a);
      const float part = fmaf(a[0], b[0], fmaf(a[1], b[1], fmaf(a[2], b[2], a[3] * b[3])));
      sum[row] = fmaf(part, scale_at(what.a, what.first + row, block) * scale_b, sum[row]);
    }
  }
  for (int row = 0; row < kBlockRows; ++row) {
    for (int lane = 16; lane > 0; lane /= 2) sum[row] += __shfl_xor_sync(0xFFFFFFFFu, sum[row], lane);
    if (row >= rows || threadIdx.x != 0) continue;
    T& at = static_cast<T*>(p.d)[(what.first + row) * p.ldd + n];
    float v = p.alpha * sum[row];
    if (p.accumulate) v += device::to_f32(at);
    device::from_f32(v, at);
  }
}

template <Numbers kA, Numbers kB>
void launch(const BlockRows& what, cudaStream_t stream) {
  const dim3 threads(32, kWarps);
  const auto blocks = static_cast<unsigned>(device::ceil_div(what.product.n, kWarps));
  if (what.product.d_type == DType::f32)
    block_rows_kernel<kA, kB, float><<<blocks, threads, 0, stream>>>(what);
  else
    block_rows_kernel<kA, kB, bf16><<<blocks, threads, 0, stream>>>(what);
}

}  // namespace

cudaError_t block_rows(const BlockRows& what, cudaStream_t stream) {
  const bool a4 = what.product.a.numbers == Numbers::e4m3, b4 = what.product.b.numbers == Numbers::e4m3;
  if (a4 && b4)
    launch<Numbers::e4m3, Numbers::e4m3>(what, stream);
  else if (a4)
    launch<Numbers::e4m3, Numbers::e5m2>(what, stream);
  else if (b4)
    launch<Numbers::e5m2, Numbers::e4m3>(what, stream);
  else
    launch<Numbers::e5m2, Numbers::e5m2>(what, stream);
  return cudaGetLastError();
}

}  // namespace halftone::gemm
