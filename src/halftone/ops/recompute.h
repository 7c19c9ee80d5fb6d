#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace halftone {

// y = f(x) keeping only x: the backward pass runs f again and differentiates it (activation checkpointing). f must be a
// function of x and of the step context alone. `handle` is any leaf of the block that requires grad.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x, const at::Tensor& handle);

}  // namespace halftone
