#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// h = silu(g) * u, silu(g) = g / (1 + exp(-g)) (Shazeer, 2020); computed in fp32, rounded once. Rows are contiguous, strides are in
// elements: g and u are usually the halves of one [T, 2F] projection.
struct SwigluForward {
  int64_t rows = 0, cols = 0;  // T, F
  DType dtype = DType::bf16;   // bf16 or f32
  const void* g = nullptr;     // [T, F]
  int64_t g_stride = 0;
  const void* u = nullptr;  // [T, F]
  int64_t u_stride = 0;
  void* h = nullptr;  // [T, F]; may be g or u
  int64_t h_stride = 0;
  uint32_t* amax = nullptr;  // [1] or null: maximum of bits32(|h|), as RmsNormForward::amax
};
void swiglu_forward(const SwigluForward& p);

// With s = 1 / (1 + exp(-g)): du = dh * g * s, dg = dh * u * s * (1 + g * (1 - s)). Only g and u are saved by forward; h is recomputed on
// request, so that it need not be saved for the down projection's wgrad.
struct SwigluBackward {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;
  const void* g = nullptr;
  int64_t g_stride = 0;
  const void* u = nullptr;
  int64_t u_stride = 0;
  const void* dh = nullptr;  // [T, F]
  int64_t dh_stride = 0;
  void* dg = nullptr;  // [T, F]; may be g
  int64_t dg_stride = 0;
  void* du = nullptr;  // [T, F]; may be u
  int64_t du_stride = 0;
  void* h = nullptr;  // [T, F] or null; may be dh
  int64_t h_stride = 0;
  uint32_t* amax = nullptr;  // [2] or null: amax of dg and of du
};
void swiglu_backward(const SwigluBackward& p);

}  // namespace halftone
