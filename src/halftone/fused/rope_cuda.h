#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/rope.h"

// CUDA implementation of fused/rope.h (halftone_cuda.so), bit-identical to the CPU. Positions are read on the device; one outside the table
// cannot be reported there, so its token becomes NaN.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rope(const halftone::Rope* what, void* stream);
