#pragma once
#include <cstddef>

#include "halftone/device/launch.h"
#include "halftone/quantize/operand.h"

// CUDA implementation of quantize/operand.h (halftone_cuda.so, see device/launch.h): bit-identical to the scalar reference. All pointers in
// the description are device pointers; the host has run check_operand on it.

// Workspace bytes of halftone_cuda_quantize_operand. Depends on the requested outputs, the sizes and the 16-byte alignment of pointers:
// query with the description of the actual call.
HALFTONE_CUDA_EXPORT size_t halftone_cuda_quantize_workspace(const halftone::QuantizeOperand* what);

// workspace: aligned to 256 bytes, at least `bytes` long, uninitialised. Can be reused as soon as later work is queued on the same stream.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_quantize_operand(const halftone::QuantizeOperand* what, void* workspace, size_t bytes,
                                                                void* stream);

// Writes QuantizeOperand::amax of what->x [rows, cols] to *amax (device memory): NaN > Inf > finite, 0 for an empty matrix.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_amax(const halftone::QuantizeOperand* what, unsigned* amax, void* stream);
