#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "halftone/ops/linear.h"

namespace halftone::library {

using MaybeTensor = std::optional<at::Tensor>;
inline bool present(const MaybeTensor& t) { return t.has_value() && t->defined(); }

// `step` is an int64 number, 0 when absent. It is a tensor, so that a compiled graph does not bake it in, and 0-dimensional, so that it
// may stay on the CPU. If it is on the device, captured kernels read it at every replay.
StepContext step_context(int64_t seed, const MaybeTensor& step, int64_t first_row);

// One weight and its bias in the form of ops/linear.h; gradients are fp32 buffers allocated on request. Stored-weight recipes quantise to
// nearest.
struct Layer {
  Weight weight, bias;
  FusedLinears fused;

  Layer(const at::Tensor& w, const MaybeTensor& b, std::string_view recipe, std::string_view options, std::string_view name);
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
};
void want_gradient(Weight& w);

// Call for backward: saves what it needs of X[T, K], quantised as in the forward pass, without repeating the GEMM.
LinearCall backward_call(const at::Tensor& x_tk, FusedLinears& fused, const StepContext& step);

// Error unless it is an int64 number on a device that fits x: a meta step beside a real matrix would leave results undefined.
void check_step(const MaybeTensor& step, const at::Tensor& x);
// The same number, checked, when passed by value: the counter of a draw.
uint32_t checked_step(const char* op, int64_t step);

// Error unless t is on x's device: kernels would misread memory of another device.
void check_beside(const char* op, const char* which, const at::Tensor& t, const at::Tensor& x);

// Error unless the recipe supports the weight's sizes; sizes that a graph does not know are checked when it runs.
void check_multiples(const LinearRecipe& recipe, std::string_view scheme, const at::Tensor& w, std::string_view name);

// "[8, 64]"; sizes may be symbolic.
std::string shape(const at::Tensor& t);

// x[..., C] as a matrix of rows, contiguous and without its graph.
at::Tensor rows_of(const at::Tensor& x);

// Error unless the shapes of x[..., K], weight[N, K] and bias[N] match; sizes may be symbolic.
void check_linear(const char* op, const at::Tensor& x, const at::Tensor& w, const MaybeTensor& bias);

}  // namespace halftone::library
