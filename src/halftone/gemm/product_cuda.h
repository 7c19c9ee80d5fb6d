#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/product.h"

// gemm/product.h on a CUDA device (halftone_cuda.so, see device/launch.h). No host synchronisation except where `measure`
// says so; works inside a stream capture.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_product(const halftone::gemm::Product* what, void* stream);

// Bytes of workspace that the product wants; with less it is slower, or says how much it needs. Addresses count: rows that are not aligned
// to 16 bytes need more.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_product_workspace(const halftone::gemm::Product* what);

// For benchmarks: the fastest of all algorithms of cuBLASLt for this product, where it is one that cuBLASLt does.
struct ProductSearch {
  float best_ms = 0, first_ms = 0, chosen_ms = 0;  // in turns: the best, the heuristic's first, the one that `measure` keeps
  int found = 0, timed = 0;             // algorithms that the library lists for the problem; of these, those timed in the given time
  char best[64] = {}, chosen[64] = {};  // number, tile, stages, cluster, swizzle and custom option, by cuBLASLt's numbers
};
HALFTONE_CUDA_EXPORT const char* halftone_cuda_product_search(const halftone::gemm::Product* what, double seconds, ProductSearch* result,
                                                              void* stream);
