#pragma once
#include <ATen/core/Tensor.h>

namespace halftone {

// h[T, F] = silu(g) * u for gu[T, 2F] = g | u (Shazeer 2020). Saves gu only.
at::Tensor swiglu(const at::Tensor& gu_t2f);

}  // namespace halftone
