#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/adamw.h"

// fused/adamw.h on a CUDA device (halftone_cuda.so, see device/launch.h): the same step, equal to the CPU's bit for bit.
// param, m, v, grad, outcome and compute_copy are device pointers; `segments` lies on the host and is read before the
// function returns.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_optimizer_step(const halftone::OptimizerStep* what, void* stream);
