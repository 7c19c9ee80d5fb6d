#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/product.h"
#include "halftone/gemm/product_choice.h"

// gemm/product.h on a CUDA device (halftone_cuda.so, see device/launch.h). No host synchronisation except where `measure`
// says so; works inside a stream capture.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_product(const halftone::gemm::Product* what, void* stream);

// Bytes of workspace that the product wants; with less it is slower, or says how much it needs. Addresses count: rows that are not aligned
// to 16 bytes need more.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_product_workspace(const halftone::gemm::Product* what);

// What `measure` chose in other processes on devices of this model: used where it still fits, before anything is measured.
HALFTONE_CUDA_EXPORT void halftone_cuda_recall_choices(const halftone::gemm::ProductChoice* from, int64_t count);
// The number of choices measured in this process so far; they are copied as far as there is room.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_made_choices(halftone::gemm::ProductChoice* to, int64_t room);
// Of cuBLASLt: its choices are numbers of its algorithms.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_library_version();
