#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/expert_rows.h"

// CUDA implementation of fused/expert_rows.h (halftone_cuda.so): the same row numbers and formulas. Sums over columns and over the rows of
// a group use another order than on the CPU; it depends on the shape only. group_bias does not write rows after the last group.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_place_experts(const halftone::PlaceExperts* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_gather_rows(const halftone::GatherRows* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_combine_rows(const halftone::CombineRows* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_group_bias(const halftone::GroupBias* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_group_sums(const halftone::GroupSums* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_clamped_swiglu(const halftone::ClampedSwiglu* what, void* stream);
HALFTONE_CUDA_EXPORT const char* halftone_cuda_clamped_swiglu_backward(const halftone::ClampedSwigluBackward* what, void* stream);
