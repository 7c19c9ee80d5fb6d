#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/rms_norm.h"

// fused/rms_norm.h on a CUDA device (halftone_cuda.so): the same formulas in fp32; sums are ordered otherwise than on the CPU, in
// an order that depends on the shape alone.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rms_norm_forward(const halftone::RmsNormForward* what, void* stream);
// `partial`: device memory of halftone_cuda_rms_norm_partial(cols) floats for the sums of dw; unused without dw.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rms_norm_backward(const halftone::RmsNormBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_rms_norm_partial(int64_t cols);
