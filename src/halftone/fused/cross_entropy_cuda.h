#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/cross_entropy.h"

// fused/cross_entropy.h on a CUDA device (halftone_cuda.so). `loss` is wanted: the sum over rows is the caller's. A label outside
// the vocabulary, of which nobody can be told there, makes its row's loss and gradient NaN.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_cross_entropy(const halftone::CrossEntropy* what, void* stream);
