#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/product.h"
#include "halftone/gemm/product_choice.h"

// CUDA implementation of gemm/product.h (halftone_cuda.so, see device/launch.h). No host synchronisation except with `measure`; works
// inside a stream capture.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_product(const halftone::gemm::Product* what, void* stream);

// Recommended workspace in bytes; with less the GEMM is slower, or reports how much it needs. Depends on the addresses: rows not aligned to
// 16 bytes need more.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_product_workspace(const halftone::gemm::Product* what);

// Imports choices that `measure` made in other processes on this device model: used if they still fit, before measuring.
HALFTONE_CUDA_EXPORT void halftone_cuda_recall_choices(const halftone::gemm::ProductChoice* from, int64_t count);
// Returns the number of choices measured in this process so far; copies as many as fit into `room`.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_made_choices(halftone::gemm::ProductChoice* to, int64_t room);
// cuBLASLt version: its choices are algorithm numbers of this version.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_library_version();
