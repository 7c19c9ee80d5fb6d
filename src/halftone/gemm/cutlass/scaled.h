#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/gemm/product.h"

namespace halftone::gemm {

// D[m, n] (+)= ((sum_k A[m, k] B[n, k]) * scale_m[m]) * scale_n[n] + bias[n]: sm_90's tensor cores with both scales, the
// bias and the accumulation in the epilogue. Each operation is rounded on its own and in this order, so an INT8 product
// equals the one on the CPU (gemm/cpu/gemm.h) bit for bit.
struct ScaledCall {
  int m = 0, n = 0, k = 0;                             // at least 1; k and n multiples of 16
  const void *a = nullptr, *b = nullptr;               // [m, k], [n, k], contiguous along k
  int64_t lda = 0, ldb = 0;                            // in elements; rows 16-byte aligned
  void* d = nullptr;                                   // [m, n]
  int64_t ldd = 0;                                     // in elements; rows 16-byte aligned
  const float *scale_m = nullptr, *scale_n = nullptr;  // null: 1
  bool vector_m = true, vector_n = true;               // [m], [n]; false: one factor
  const float* bias = nullptr;                         // [n] or null
  int sm_count = 0;
  // The order in which tiles are handed out: along m or n first (automatic: CUTLASS' own choice), in bands of `swizzle` tiles.
  enum class Raster { automatic, along_m, along_n };
  Raster raster = Raster::automatic;
  int swizzle = 1;
  cudaStream_t stream = nullptr;
};

// Tile of a thread block (m x n, 128 of k at a time), how its two groups of warps share the work, and the cluster of thread
// blocks that share loads: pingpong computes two tiles in turns, so that one's epilogue hides behind the other's products.
enum class Tiling { pingpong_128x128, pingpong_64x256, pingpong_64x128, cooperative_128x256 };

// Instantiated in cutlass/*.cu for what product_cuda.cpp lists. Null, or why nothing was queued.
template <Numbers kA, Numbers kB, DType kD, bool kAccumulate, Tiling kTiling>
const char* scaled_product(const ScaledCall& call);

}  // namespace halftone::gemm
