#pragma once
#include <cuda_runtime_api.h>

namespace halftone::device {

// What a function of halftone_cuda.so returns (device/launch.h): null, or the error as text.
inline const char* error_text(cudaError_t status) { return status == cudaSuccess ? nullptr : cudaGetErrorString(status); }

}  // namespace halftone::device
