#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/random_fill.h"

// fused/random_fill.h on a CUDA device (halftone_cuda.so, see device/launch.h), equal bit for bit.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_random_fill(const halftone::RandomFill* what, void* stream);
