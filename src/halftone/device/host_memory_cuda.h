#pragma once
#include <cstddef>

#include "halftone/device/launch.h"

// Page-locks exactly these bytes of ordinary host memory, so that kernels access them over the bus at the host addresses.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_lock_memory(void* data, size_t bytes);
// Unlocks after all work queued on the current device is done. Device errors belong to whoever queued that work and are not reported here.
HALFTONE_CUDA_EXPORT void halftone_cuda_unlock_memory(void* data);
