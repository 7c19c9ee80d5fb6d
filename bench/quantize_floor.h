#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "halftone/base/dtype.h"

namespace halftone {

// What the kernels of MXFP4 cannot do without (quantize_floor.cu): the memory traffic of a scheme, its draws and its rotation.
struct Floor {
  std::string name;
  double output_bytes;  // an element
  void (*run)(const void* x, int64_t rows, int64_t cols, void* row, void* transposed, cudaStream_t stream);
  DType type = DType::bf16;  // of x
};
const std::vector<Floor>& quantize_floors();
// Of packed MXFP4 with draws, both copies: the least instructions and the memory alone (quantize_least.cu). rows * cols: a multiple of
// 1024.
void run_least_packed(const void* x, int64_t rows, int64_t cols, void* row, void* transposed, cudaStream_t stream);

}  // namespace halftone
