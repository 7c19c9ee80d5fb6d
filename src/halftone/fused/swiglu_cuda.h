#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/swiglu.h"

// CUDA implementation of fused/swiglu.h (halftone_cuda.so): the same formulas with the device library's exp().
HALFTONE_CUDA_EXPORT const char* halftone_cuda_swiglu_forward(const halftone::SwigluForward* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_swiglu_backward(const halftone::SwigluBackward* what, void* stream);
