#pragma once
#include "halftone/fused/kernels.h"
#include "halftone/fused/rows/cross_entropy.h"
#include "halftone/fused/rows/embedding.h"
#include "halftone/fused/rows/flat.h"
#include "halftone/fused/rows/norm_rope.h"
#include "halftone/fused/rows/rms_norm.h"
#include "halftone/fused/rows/rope.h"
#include "halftone/fused/rows/swiglu.h"

// Included once per instruction set.
namespace halftone::HALFTONE_SIMD {

const FusedKernels& fused_kernels() {
  static constexpr FusedKernels kernels{
      .rms_norm_forward = rms_norm_forward_rows,
      .rms_norm_backward = rms_norm_backward_rows,
      .rope = rope_rows,
      .norm_rope = norm_rope_rows,
      .norm_rope_backward = norm_rope_backward_rows,
      .swiglu_forward = swiglu_forward_rows,
      .swiglu_backward = swiglu_backward_rows,
      .embedding_forward = embedding_forward_rows,
      .embedding_backward = embedding_backward_columns,
      .softmax_sum = softmax_sum,
      .scaled_copy = scaled_copy,
      .square = square_block,
      .scale = scale_block,
      .convert = convert_block,
      .accumulate = accumulate_block,
  };
  return kernels;
}

}  // namespace halftone::HALFTONE_SIMD
