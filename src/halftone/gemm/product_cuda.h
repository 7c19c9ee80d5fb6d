#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/product.h"

// gemm/product.h on a CUDA device (halftone_cuda.so, see device/launch.h). No host synchronisation except where `measure`
// says so; works inside a stream capture.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_product(const halftone::gemm::Product* what, void* stream);

// Bytes of workspace that the product wants; with less it is slower, or says how much it needs. Addresses count: rows that are not aligned
// to 16 bytes need more.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_product_workspace(const halftone::gemm::Product* what);
