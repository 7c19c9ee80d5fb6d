#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "halftone/ops/activation.h"
#include "halftone/ops/weight.h"

namespace halftone {

// Start of a residual branch: x_new = x + branch (or x if `branch` is undefined) and y = RMSNorm(x_new) * w (Zhang & Sennrich 2019),
// statistics in fp32. x, x_new: [T, D] in the residual stream's dtype; branch, y: [T, D] in the weight's; the two dtypes are equal or the
// stream is float32. One op, so that backward adds the branch's gradient to the residual's in the same pass. Returns {x_new, y}, y with
// its amax on request.
std::pair<at::Tensor, Activation> add_rms_norm(const at::Tensor& x_td, const at::Tensor& branch_td, Weight& weight_d, double eps,
                                               bool want_amax = false);

}  // namespace halftone
