#pragma once
#include "halftone/device/launch.h"
#include "halftone/optim/step.h"

// CUDA implementation of optim/step.h (halftone_cuda.so, see device/launch.h): bit-identical to the CPU. param, states, grad, outcome and
// compute_copy are device pointers; `segments` is a host pointer and is read before the function returns.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_optimizer_step(const halftone::OptimizerStep* what, void* stream);
