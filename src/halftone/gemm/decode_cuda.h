#pragma once
#include "halftone/device/launch.h"
#include "halftone/gemm/decode.h"

// gemm/decode.h on a CUDA device (halftone_cuda.so, see device/launch.h): the same numbers.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_decode(const halftone::gemm::DecodeCopy* what, void* stream);
