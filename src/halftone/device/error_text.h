#pragma once
#include <cuda_runtime_api.h>

namespace halftone::device {

// Return value of halftone_cuda.so functions (device/launch.h): null, or the error text. Clears the runtime's last error; otherwise the
// next launch would report it again.
inline const char* error_text(cudaError_t status) {
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(status);
}

}  // namespace halftone::device
