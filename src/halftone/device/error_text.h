#pragma once
#include <cuda_runtime_api.h>

namespace halftone::device {

// What a function of halftone_cuda.so returns (device/launch.h): null, or the error as text. The runtime's last error is cleared, which
// would otherwise be reported once more, by whoever launches next.
inline const char* error_text(cudaError_t status) {
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(status);
}

}  // namespace halftone::device
