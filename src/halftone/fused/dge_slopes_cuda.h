#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/dge_slopes.h"

// CUDA implementation of fused/dge_slopes.h (halftone_cuda.so, see device/launch.h), bit-identical.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_dge_slopes(const halftone::DgeSlopes* what, void* stream);
