#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/dge_slopes.h"

// fused/dge_slopes.h on a CUDA device (halftone_cuda.so, see device/launch.h), equal bit for bit.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_dge_slopes(const halftone::DgeSlopes* what, void* stream);
