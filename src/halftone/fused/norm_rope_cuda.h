#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/norm_rope.h"

// CUDA implementation of fused/norm_rope.h (halftone_cuda.so): the same formulas in fp32. Sums use another order than on the CPU; it
// depends on the shape only. Positions outside the table: see rope_cuda.h.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_norm_rope(const halftone::NormRope* what, void* stream);
// `partial`: device memory of halftone_cuda_norm_rope_partial(head_dim) floats for partial sums of dw; unused without dw.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_norm_rope_backward(const halftone::NormRopeBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_norm_rope_partial(int64_t head_dim);
