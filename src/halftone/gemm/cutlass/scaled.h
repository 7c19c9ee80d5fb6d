#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/gemm/product.h"

namespace halftone::gemm {

// D[m, n] (+)= ((sum_k A[m, k] B[n, k]) * scale_m[m]) * scale_n[n] + bias[n]: sm_90 tensor cores with both scales, the bias and the
// accumulation in the epilogue. Each operation is rounded separately in this order, so int8 GEMMs equal the CPU's (gemm/cpu/gemm.h) bit for
// bit.
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
  // Tile order: along m or n first (automatic: CUTLASS's choice), in bands of `swizzle` tiles.
  enum class Raster { automatic, along_m, along_n };
  Raster raster = Raster::automatic;
  int swizzle = 1;
  cudaStream_t stream = nullptr;
};

// Thread block tile (m x n, 128 of k per stage), schedule of the two consumer warp groups, and the cluster that shares loads. Pingpong
// alternates between two tiles, so that one's epilogue overlaps the other's main loop.
enum class Tiling { pingpong_128x128, pingpong_64x256, pingpong_64x128, cooperative_128x256 };

// Instantiated in cutlass/*.cu for the combinations listed in product_cuda.cpp. Returns null, or why nothing was enqueued.
template <Numbers kA, Numbers kB, DType kD, bool kAccumulate, Tiling kTiling>
const char* scaled_product(const ScaledCall& call);

}  // namespace halftone::gemm
