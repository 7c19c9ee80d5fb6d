#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/stored_weight.h"

// fused/stored_weight.h on a CUDA device (halftone_cuda.so, see device/launch.h), equal bit for bit.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_store_weight(const halftone::StoreWeight* what, void* stream);
