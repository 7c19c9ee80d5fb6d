#pragma once
#include <cstddef>

#include "halftone/device/launch.h"

// Page-locks ordinary host memory, exactly these bytes, so that kernels read and write it over the bus under the host's own addresses.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_lock_memory(void* data, size_t bytes);
// Undoes it when all that is queued on the current device is done. An error of the device is of those who queued the work.
HALFTONE_CUDA_EXPORT void halftone_cuda_unlock_memory(void* data);
