#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/grouped_product.h"

// gemm/grouped_product.h on a CUDA device (halftone_cuda.so, see device/launch.h). The groups are read on the device: no host
// synchronisation; works inside a stream capture. Offsets that are no multiples of kGroupRows, or beyond the rows, are undefined behaviour.
//
// sm_90's tensor cores (gemm/cutlass/grouped.cuh) take, of rows that are aligned to 16 bytes,
//   rows         to bf16: bf16 x bf16 (B also transposed), e4m3 or e5m2 x e4m3, s8 x s8
//   contraction  to f32, accumulating or not: bf16 x bf16 (both transposed, or neither), e4m3 or e5m2 x e4m3, s8 x s8
// with scales none, tensor or row, and outer; e4m3 also with scales of 128 elements: block128 by tile128 in `rows`, block128 on both sides
// in `contraction`, and macro blocks likewise. Sums of fp8 are promoted to fp32 every 128 elements; with fast_accumulation those of e4m3
// in `rows` are not. Everything else is done by a portable kernel in fp32 (gemm/cuda/grouped_portable.cu): exact, and slow.
// Sums of s8 are int32: a group's contraction may have kMostInt8Products elements (int8_sums.h), which is not checked.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_grouped_product(const halftone::gemm::GroupedProduct* what, void* stream);

// Bytes of workspace that the product needs. Addresses count, as in halftone_cuda_product_workspace.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_grouped_product_workspace(const halftone::gemm::GroupedProduct* what);
