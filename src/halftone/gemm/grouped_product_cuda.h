#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/grouped_product.h"

// CUDA implementation of gemm/grouped_product.h (halftone_cuda.so, see device/launch.h). Groups are read on the device: no host
// synchronisation; works inside a stream capture. Offsets that are not multiples of kGroupRows or exceed the rows: undefined behaviour.
//
// sm_90 tensor cores (gemm/cutlass/grouped.cuh) support, for rows aligned to 16 bytes,
//   rows         to bf16: bf16 x bf16 (B also transposed), e4m3 or e5m2 x e4m3, s8 x s8
//   contraction  to f32, accumulating or not: bf16 x bf16 (both transposed, or neither), e4m3 or e5m2 x e4m3, s8 x s8
// with scales none, tensor or row, and outer; e4m3 also with 128-element scales: block128 by tile128 in `rows`, block128 on both sides in
// `contraction`, and macro blocks likewise. fp8 sums are promoted to fp32 every 128 elements, except e4m3 in `rows` with
// fast_accumulation. Everything else runs on a portable fp32 kernel (gemm/cuda/grouped_portable.cu): exact, but slow.
// s8 sums are int32: the contraction of a group is limited to kMostInt8Products elements (int8_sums.h), which is not checked.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_grouped_product(const halftone::gemm::GroupedProduct* what, void* stream);

// Required workspace in bytes. Depends on the addresses, see halftone_cuda_product_workspace.
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_grouped_product_workspace(const halftone::gemm::GroupedProduct* what);
