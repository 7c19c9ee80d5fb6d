#pragma once
#include <cuda_runtime_api.h>

#include "halftone/gemm/cuda/scales.h"

namespace halftone::gemm {

// Last rows of a GEMM with 128-element scales, at most kBlockRows: cuBLASLt supports 1x128 scales only for row counts that are multiples of
// 4. Memory-bound: reads all of B once. No bias.
constexpr int kBlockRows = 3;
struct BlockRows {
  Product product{};
  int64_t first = 0;  // first row
  ScaleJob a, b;      // source of the scales
};
cudaError_t block_rows(const BlockRows& what, cudaStream_t stream);

}  // namespace halftone::gemm
