#pragma once
#include <cuda_runtime_api.h>

#include "halftone/gemm/cuda/scales.h"

namespace halftone::gemm {

// The last rows of a product with scales of 128 elements, at most kBlockRows of them: cuBLASLt takes 1x128 scales of a
// multiple of 4 rows only. Reads all of B once, so it runs at the speed of memory. No bias.
constexpr int kBlockRows = 3;
struct BlockRows {
  Product product{};
  int64_t first = 0;  // row
  ScaleJob a, b;      // where the scales come from
};
cudaError_t block_rows(const BlockRows& what, cudaStream_t stream);

}  // namespace halftone::gemm
