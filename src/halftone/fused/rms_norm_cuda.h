#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/rms_norm.h"

// CUDA implementation of fused/rms_norm.h (halftone_cuda.so): the same formulas in fp32. Sums use another order than on the CPU; it depends
// on the shape only.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rms_norm_forward(const halftone::RmsNormForward* what, void* stream);
// `partial`: device memory of halftone_cuda_rms_norm_partial(cols) floats for partial sums of dw; unused without dw.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rms_norm_backward(const halftone::RmsNormBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_rms_norm_partial(int64_t cols);
