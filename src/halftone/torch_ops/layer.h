#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "halftone/ops/linear.h"

namespace halftone::library {

using MaybeTensor = std::optional<at::Tensor>;
inline bool present(const MaybeTensor& t) { return t.has_value() && t->defined(); }

// `step` is an int64 number, 0 when absent: a tensor, so that a compiled graph does not bake it in; of no dimensions, so that it may
// stay on the CPU. One on the device is read by the kernels of a graph capture in every replay.
StepContext step_context(int64_t seed, const MaybeTensor& step, int64_t first_row);

// One weight and its bias as ops/linear.h takes them; gradients are fp32 buffers made on request. A recipe of stored
// weights quantises to nearest.
struct Layer {
  Weight weight, bias;
  FusedLinears fused;

  Layer(const at::Tensor& w, const MaybeTensor& b, std::string_view recipe, std::string_view options, std::string_view name);
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
};
void want_gradient(Weight& w);

// What backward needs of X[T, K], quantised as in the forward pass, whose product is not repeated.
LinearCall backward_call(const at::Tensor& x_tk, FusedLinears& fused, const StepContext& step);

// Error unless an int64 number that goes with x: one without memory (meta) beside a matrix that has some would leave results undefined.
void check_step(const MaybeTensor& step, const at::Tensor& x);
// The same number where it is given by value: what a draw's counter holds.
uint32_t checked_step(const char* op, int64_t step);

// Error unless t lies where x does: kernels of one device read other memory as if it were theirs.
void check_beside(const char* op, const char* which, const at::Tensor& t, const at::Tensor& x);

// Error unless the recipe takes the sizes of weight; a size that a graph does not know is checked when the graph runs.
void check_multiples(const LinearRecipe& recipe, std::string_view scheme, const at::Tensor& w, std::string_view name);

// "[8, 64]"; sizes may be symbolic.
std::string shape(const at::Tensor& t);

// x[..., C] as a matrix of rows, contiguous and without its graph.
at::Tensor rows_of(const at::Tensor& x);

// Error unless x[..., K], weight[N, K] and bias[N] go together; sizes may be symbolic.
void check_linear(const char* op, const at::Tensor& x, const at::Tensor& w, const MaybeTensor& bias);

}  // namespace halftone::library
