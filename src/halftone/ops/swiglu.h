#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "halftone/ops/linear.h"

namespace halftone {

// h[T, F] = silu(g) * u for gu[T, 2F] = g | u (Shazeer 2020). Saves gu only, and overwrites it with its gradient if nothing else holds
// that memory and the graph is not retained for a second pass. amax: of h on request; of dg and du into `gradients` if given.
Activation swiglu(const at::Tensor& gu_t2f, bool want_amax = false, std::shared_ptr<GradientAmax> gradients = nullptr);

// From separate g and u, both [T, F]: their gradients are separate too.
at::Tensor swiglu(const at::Tensor& g, const at::Tensor& u);

// linear(swiglu(gu)) as one op. h is not saved: the backward pass of SwiGLU recomputes it, over dh, before wgrad, which quantises it
// again (LinearOptions::x_again).
at::Tensor swiglu_linear(const at::Tensor& gu_t2f, FusedLinears& fused, const StepContext& step,
                         std::shared_ptr<GradientAmax> gradients = nullptr, const RowShares& shares = {});

}  // namespace halftone
