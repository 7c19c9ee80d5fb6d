#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/decode.h"

// CUDA implementation of gemm/decode.h (halftone_cuda.so, see device/launch.h): identical results.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_decode(const halftone::gemm::DecodeCopy* what, void* stream);
