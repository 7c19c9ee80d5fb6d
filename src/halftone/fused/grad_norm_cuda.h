#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/grad_norm.h"

// Gradient norm and step outcome on a CUDA device (halftone_cuda.so, see device/launch.h); no result is copied to the host.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_partial_squares(const halftone::PartialSquares* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_judge_step(const halftone::JudgeStep* what, void* stream);
