#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/cross_entropy.h"

// CUDA implementation of fused/cross_entropy.h (halftone_cuda.so). Requires `loss`; the caller sums it over the rows. A label outside the
// vocabulary cannot be reported from the device: the row's loss and gradient become NaN.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_cross_entropy(const halftone::CrossEntropy* what, void* stream);
