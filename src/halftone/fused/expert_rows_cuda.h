#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/expert_rows.h"

// fused/expert_rows.h on a CUDA device (halftone_cuda.so): the same numbers of rows and the same formulas; sums over columns and over the
// rows of a group are ordered otherwise than on the CPU, in an order that depends on the shape alone. Rows beyond the last group are not
// written by group_bias.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_place_experts(const halftone::PlaceExperts* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_gather_rows(const halftone::GatherRows* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_combine_rows(const halftone::CombineRows* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_group_bias(const halftone::GroupBias* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_group_sums(const halftone::GroupSums* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_clamped_swiglu(const halftone::ClampedSwiglu* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_clamped_swiglu_backward(const halftone::ClampedSwigluBackward* what, void* stream);
