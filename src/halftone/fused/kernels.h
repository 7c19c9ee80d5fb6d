#pragma once
#include <cstdint>

#include "halftone/fused/cross_entropy.h"
#include "halftone/fused/embedding.h"
#include "halftone/fused/norm_rope.h"
#include "halftone/fused/rms_norm.h"
#include "halftone/fused/rope.h"
#include "halftone/fused/swiglu.h"

namespace halftone {

// Row kernels of this folder for one instruction set. They process the given range and start no threads; the functions of the public
// headers check the arguments and split the work.
struct SoftmaxSum {
  float max, sum;  // per row: m, and sum_v exp(z_v - m)
};

struct FusedKernels {
  void (*rms_norm_forward)(const RmsNormForward&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormBackward&, int64_t begin, int64_t end, float* dw);  // adds the rows to dw [D]
  void (*rope)(const Rope&, int64_t begin, int64_t end);
  void (*norm_rope)(const NormRope&, int64_t begin, int64_t end);
  void (*norm_rope_backward)(const NormRopeBackward&, int64_t begin, int64_t end, float* dw);  // adds the tokens to dw [d]
  void (*swiglu_forward)(const SwigluForward&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluBackward&, int64_t begin, int64_t end);
  void (*embedding_forward)(const EmbeddingForward&, int64_t begin, int64_t end);
  void (*embedding_backward)(const EmbeddingBackward&, int64_t begin_column, int64_t end_column);
  SoftmaxSum (*softmax_sum)(const void* logits, DType, int64_t vocab, float* exponentials);  // exponentials [V] or null
  void (*scaled_copy)(const float* x, int64_t n, float factor, void* y, DType y_dtype);
  double (*square)(const void* x, int64_t n, DType);
  void (*scale)(float* x, int64_t n, float factor);
  void (*convert)(const void* x, DType from, void* y, DType to, int64_t n);
  void (*accumulate)(float* sum, const void* x, DType, int64_t n);
};

namespace v3 {
const FusedKernels& fused_kernels();
}
namespace avx512 {
const FusedKernels& fused_kernels();  // call its members only if cpu_features().avx512
}

// Kernels for this CPU, unless a test overrides them (null: restore the CPU's).
const FusedKernels& fused_kernels();
void use_fused_kernels(const FusedKernels* kernels);

}  // namespace halftone
