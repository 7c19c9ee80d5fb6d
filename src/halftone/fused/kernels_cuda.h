#pragma once
#include "halftone/device/launch.h"
#include "halftone/fused/cross_entropy.h"
#include "halftone/fused/dge_slopes.h"
#include "halftone/fused/expert_rows.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/fused/norm_rope.h"
#include "halftone/fused/random_fill.h"
#include "halftone/fused/rms_norm.h"
#include "halftone/fused/rope.h"
#include "halftone/fused/stored_weight.h"
#include "halftone/fused/swiglu.h"

// The functions of fused/ on a CUDA device (halftone_cuda.so, see device/launch.h): the same formulas, with the device library's exp().
// Sums use another order than on the CPU; it depends on the shape only.
#define HALFTONE_FUSED(name, What) HALFTONE_CUDA_EXPORT const char* halftone_cuda_##name(const halftone::What* what, void* stream);
HALFTONE_FUSED(swiglu_forward, SwigluForward)
HALFTONE_FUSED(swiglu_backward, SwigluBackward)
// `partial`: device memory of the function below for partial sums of dw; unused without dw.
HALFTONE_FUSED(rms_norm_forward, RmsNormForward)
HALFTONE_CUDA_EXPORT const char* halftone_cuda_rms_norm_backward(const halftone::RmsNormBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_rms_norm_partial(int64_t cols);  // floats
HALFTONE_FUSED(norm_rope, NormRope)
HALFTONE_CUDA_EXPORT const char* halftone_cuda_norm_rope_backward(const halftone::NormRopeBackward* what, float* partial, void* stream);
HALFTONE_CUDA_EXPORT int64_t halftone_cuda_norm_rope_partial(int64_t head_dim);  // floats
// Bit-identical. Positions are read on the device; one outside the table cannot be reported there, so its token becomes NaN.
HALFTONE_FUSED(rope, Rope)
// Requires `loss`; the caller sums it over the rows. A label outside the vocabulary cannot be reported from the device: the row's loss and
// gradient become NaN.
HALFTONE_FUSED(cross_entropy, CrossEntropy)
// No result is copied to the host.
HALFTONE_FUSED(partial_squares, PartialSquares)
HALFTONE_FUSED(judge_step, JudgeStep)
// Bit-identical.
HALFTONE_FUSED(dge_slopes, DgeSlopes)
HALFTONE_FUSED(random_fill, RandomFill)
HALFTONE_FUSED(store_weight, StoreWeight)
// The same row numbers. group_bias does not write rows after the last group.
HALFTONE_FUSED(place_experts, PlaceExperts)
HALFTONE_FUSED(gather_rows, GatherRows)
HALFTONE_FUSED(combine_rows, CombineRows)
HALFTONE_FUSED(group_bias, GroupBias)
HALFTONE_FUSED(group_sums, GroupSums)
HALFTONE_FUSED(clamped_swiglu, ClampedSwiglu)
HALFTONE_FUSED(clamped_swiglu_backward, ClampedSwigluBackward)
#undef HALFTONE_FUSED
