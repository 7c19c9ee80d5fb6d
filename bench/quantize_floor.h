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

}  // namespace halftone
