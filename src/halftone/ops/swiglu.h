#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "halftone/ops/activation.h"

namespace halftone {

// h[T, F] = silu(g) * u for gu[T, 2F] = g | u (Shazeer 2020). Saves gu only. Largest magnitudes: of h where it is asked for; of dg
// and du into `gradients`, where that is given.
Activation swiglu(const at::Tensor& gu_t2f, bool want_amax = false, std::shared_ptr<GradientAmax> gradients = nullptr);

}  // namespace halftone
