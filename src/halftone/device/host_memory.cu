#include "halftone/device/host_memory_cuda.h"

#include <cuda_runtime.h>

#include "halftone/device/error_text.h"

using halftone::device::error_text;

const char* halftone_cuda_lock_memory(void* data, size_t bytes) {
  if (const cudaError_t status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped); status != cudaSuccess)
    return error_text(status);
  void* seen = nullptr;
  const cudaError_t status = cudaHostGetDevicePointer(&seen, data, 0);
  if (status == cudaSuccess && seen == data) return nullptr;
  cudaHostUnregister(data);
  return status == cudaSuccess ? "the device has another address for it" : error_text(status);
}

void halftone_cuda_unlock_memory(void* data) {
  cudaDeviceSynchronize();
  error_text(cudaHostUnregister(data));
}
