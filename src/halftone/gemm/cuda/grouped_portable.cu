#include <cuda_fp8.h>

#include <type_traits>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/gemm/cuda/grouped.h"
#include "halftone/gemm/cuda/grouped_factor.cuh"
#include "halftone/gemm/cuda/scale_at.cuh"

namespace halftone::gemm {
namespace {

constexpr int kTile = 64, kStep = 16, kBlock = 128;  // tile of D per thread block, k per step, elements per scale

bool in_blocks(const GroupedOperand& x) { return x.scales == Scales::block128 || x.scales == Scales::tile128 || x.macro; }

template <class Sum>
__device__ Sum element_at(const GroupedOperand& x, int64_t i) {
  switch (x.numbers) {
    case Numbers::bf16:
      return static_cast<Sum>(device::to_f32(static_cast<const bf16*>(x.data)[i]));
    case Numbers::f32:
      return static_cast<Sum>(static_cast<const float*>(x.data)[i]);
    case Numbers::s8:
      return static_cast<Sum>(static_cast<const int8_t*>(x.data)[i]);
    default: {
      const auto code = static_cast<const __nv_fp8_storage_t*>(x.data)[i];
      return static_cast<Sum>(__half2float(__half(__nv_cvt_fp8_to_halfraw(code, x.numbers == Numbers::e4m3 ? __NV_E4M3 : __NV_E5M2))));
    }
  }
}

// One side of a D tile: kTile rows of an operand from `row`.
struct Side {
  GroupedOperand x;
  int64_t row = 0, rows = 0;         // first row of the tile; rows in this group (A in `rows`: in the buffer)
  int64_t row_step = 0, k_step = 0;  // strides in data
  int64_t first = 0;                 // element of data at which the group begins
  int64_t blocks = 0, first_scale = 0, first_macro = 0;
};

__device__ Side side(const GroupedOperand& x, int64_t row, int64_t rows, int64_t k, int64_t group) {
  Side s{x, row, rows};
  const int64_t ld = x.ld ? x.ld : x.transposed ? rows : k;
  s.row_step = x.transposed ? 1 : ld, s.k_step = x.transposed ? ld : 1;
  s.blocks = (k + kBlock - 1) / kBlock;
  s.first = group * x.stride, s.first_scale = group * x.scale_stride;
  s.first_macro = group * (x.macro_tiles ? (rows + kBlock - 1) / kBlock : rows) * s.blocks;
  return s;
}

// Scale of one row's 128-block along k, for scales applied inside the sum.
__device__ float block_factor(const Side& s, int64_t row, int64_t block) {
  const int64_t tile = row / kBlock;
  float f = 1;
  if (s.x.scales == Scales::block128) f *= s.x.scale[s.first_scale + row * s.blocks + block];
  if (s.x.scales == Scales::tile128) f *= s.x.scale[s.first_scale + tile * s.blocks + block];
  if (s.x.macro) f *= macro_factor(s.x.macro[s.first_macro + (s.x.macro_tiles ? tile : row) * s.blocks + block]);
  return f;
}

template <class Sum>
__device__ void stage(const Side& s, int64_t k, int64_t k_end, Sum (&to)[kStep][kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kStep; i += blockDim.x) {
    const int r = s.k_step == 1 ? i / kStep : i % kTile, j = s.k_step == 1 ? i % kStep : i / kTile;
    const bool inside = s.row + r < s.rows && k + j < k_end;
    to[j][r] = inside ? element_at<Sum>(s.x, s.first + (s.row + r) * s.row_step + (k + j) * s.k_step) : Sum{0};
  }
}

// Sum: int32 for s8, else fp32. A thread computes 4 x 4 elements of D, 16 apart.
template <class Sum, bool kBlocks>
__global__ void __launch_bounds__(256) portable_kernel(GroupedProduct p) {
  const bool rows = p.ragged == Ragged::rows;
  const int64_t m0 = int64_t{blockIdx.y} * kTile, n0 = int64_t{blockIdx.x} * kTile;
  const int64_t group = rows ? group_of(p.groups, m0) : int64_t{blockIdx.z};
  const int64_t m = rows ? p.rows : p.m, k = rows ? p.k : p.rows;
  const bool tail = group == p.groups.groups;
  const int64_t k_begin = rows || tail ? 0 : p.groups.offsets[group];
  const int64_t k_end = tail ? 0 : rows ? k : p.groups.offsets[group + 1];
  const Side a = side(p.a, m0, m, k, 0), b = side(p.b, n0, p.n, k, rows ? group : 0);
  __shared__ Sum a_tile[kStep][kTile + 1], b_tile[kStep][kTile + 1];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  Sum part[4][4] = {};
  float sum[4][4] = {};
  for (int64_t k0 = k_begin; k0 < k_end; k0 += kStep) {
    stage(a, k0, k_end, a_tile);
    stage(b, k0, k_end, b_tile);
    __syncthreads();
    for (int j = 0; j < kStep; ++j) {
      for (int y = 0; y < 4; ++y) {
        for (int x = 0; x < 4; ++x) {
          if constexpr (std::is_same_v<Sum, int32_t>)
            part[y][x] += a_tile[j][ty + 16 * y] * b_tile[j][tx + 16 * x];
          else
            part[y][x] = fmaf(a_tile[j][ty + 16 * y], b_tile[j][tx + 16 * x], part[y][x]);
        }
      }
    }
    __syncthreads();
    const bool last = k0 + kStep >= k_end;
    if (!last && (!kBlocks || (k0 + kStep) % kBlock != 0)) continue;
    for (int y = 0; y < 4; ++y) {
      const int64_t row = m0 + ty + 16 * y;
      const float fa = kBlocks && row < m ? block_factor(a, row, k0 / kBlock) : 1.0f;
      for (int x = 0; x < 4; ++x) {
        const int64_t column = n0 + tx + 16 * x;
        const float f = kBlocks && column < p.n ? fa * block_factor(b, column, k0 / kBlock) : 1.0f;
        sum[y][x] = fmaf(static_cast<float>(part[y][x]), f, sum[y][x]);
        part[y][x] = 0;
      }
    }
  }
  const int64_t first = rows ? 0 : group * p.m * p.n;
  for (int y = 0; y < 4; ++y) {
    const int64_t row = m0 + ty + 16 * y;
    if (row >= m) continue;
    const float fa = tail ? 0.0f : row_factor(p.a, p.alpha, group, rows ? row : group * p.m + row);
    for (int x = 0; x < 4; ++x) {
      const int64_t column = n0 + tx + 16 * x;
      if (column >= p.n) continue;
      const int64_t i = first + row * p.n + column;
      float v = k_end > k_begin ? sum[y][x] * fa * row_factor(p.b, 1, group, group * p.n + column) : 0.0f;
      if (p.d_type == DType::f32) {
        auto* d = static_cast<float*>(p.d);
        d[i] = p.accumulate ? v + d[i] : v;
      } else {
        auto* d = static_cast<bf16*>(p.d);
        if (p.accumulate) v += device::to_f32(d[i]);
        device::from_f32(v, d[i]);
      }
    }
  }
}

}  // namespace

cudaError_t grouped_portable(const GroupedProduct& p, cudaStream_t stream) {
  const bool rows = p.ragged == Ragged::rows;
  const dim3 grid(static_cast<unsigned>(device::ceil_div(p.n, kTile)), static_cast<unsigned>(device::ceil_div(rows ? p.rows : p.m, kTile)),
                  rows ? 1 : static_cast<unsigned>(p.groups.groups));
  if (p.a.numbers == Numbers::s8)
    portable_kernel<int32_t, false><<<grid, 256, 0, stream>>>(p);
  else if (in_blocks(p.a) || in_blocks(p.b))
    portable_kernel<float, true><<<grid, 256, 0, stream>>>(p);
  else
    portable_kernel<float, false><<<grid, 256, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace halftone::gemm
