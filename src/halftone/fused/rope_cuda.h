#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/rope.h"

// fused/rope.h on a CUDA device (halftone_cuda.so), equal to the CPU's. Positions are read on the device, where nobody can be
// told of one outside the table: its token becomes NaN.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rope(const halftone::Rope* what, void* stream);
