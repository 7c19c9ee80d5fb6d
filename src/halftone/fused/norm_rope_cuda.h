#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/norm_rope.h"

// fused/norm_rope.h on a CUDA device (halftone_cuda.so): the same formulas in fp32; sums are ordered otherwise than on the CPU, in an
// order that depends on the shape alone. Positions outside the table as in rope_cuda.h.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_norm_rope(const halftone::NormRope* what, void* stream);
// `partial`: device memory of halftone_cuda_norm_rope_partial(head_dim) floats for the sums of dw; unused without dw.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_norm_rope_backward(const halftone::NormRopeBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_norm_rope_partial(int64_t head_dim);
