#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/swiglu.h"

// fused/swiglu.h on a CUDA device (halftone_cuda.so): the same formulas, exp() of the device's library.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_swiglu_forward(const halftone::SwigluForward* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_swiglu_backward(const halftone::SwigluBackward* what, void* stream);
