#pragma once
#include <cstddef>

#include "halftone/device/launch.h"
#include "halftone/quantize/operand.h"

// quantize/operand.h on a CUDA device (halftone_cuda.so, see device/launch.h): the same bytes as the scalar reference's. All
// pointers in the description are device pointers; it has passed check_operand on the host.

// Bytes of device memory that halftone_cuda_quantize_operand needs beside the outputs. Depends on what is asked for, on the
// sizes, and on which pointers are aligned to 16 bytes: ask with the description that will be given.
HALFTONE_CUDA_EXPORT size_t halftone_cuda_quantize_workspace(const halftone::QuantizeOperand* what);

// workspace: aligned to 256 bytes, of at least so many bytes; its content is not looked at, and it may be used again as soon as
// later work on the same stream is queued.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_quantize_operand(const halftone::QuantizeOperand* what, void* workspace, size_t bytes,
                                                                void* stream);

// QuantizeOperand::amax of what->x [rows, cols] into *amax (device memory): NaN > Inf > finite, 0 for an empty matrix.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_amax(const halftone::QuantizeOperand* what, unsigned* amax, void* stream);
