#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/random_fill.h"

// CUDA implementation of fused/random_fill.h (halftone_cuda.so, see device/launch.h), bit-identical.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_random_fill(const halftone::RandomFill* what, void* stream);
