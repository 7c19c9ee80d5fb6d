#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "halftone/formats/recipe.h"
#include "halftone/ops/weight.h"

namespace halftone {

// Copies of a group's weights in the form that the products read; rebuilt when a weight's version moves on.
struct PreparedWeights {
  virtual ~PreparedWeights() = default;
};

// One or several weights [N_i, K] that read the same input under the same recipe (wq|wk|wv, w1|w3): the input is
// quantised once, every weight keeps its own scales, so the group computes exactly what its members would.
struct LinearGroup {
  std::vector<Weight*> weights;
  LinearRecipe recipe = kLinearRecipes[0];
  std::shared_ptr<PreparedWeights> prepared;
  uint64_t prepared_version = 0;

  int64_t in_features() const { return weights.front()->value.size(1); }
  int64_t out_features() const;
  uint64_t version() const;
};

// Y[T, sum N_i] = X[T, K] . [W_0; W_1; ...]^T. Operands and rounding by `recipe` (numerics.md section 7); backward returns
// dX in X's dtype and adds each dW_i to its weight's fp32 gradient.
at::Tensor linear(const at::Tensor& x_tk, LinearGroup& group);

// True when this build has products for the recipe on the device type; the reason otherwise.
std::string unsupported_reason(const LinearRecipe& recipe, c10::DeviceType device);

// The six operands in portable ATen operations: the path of devices without kernels of ours, and the oracle of the tests.
namespace aten {
at::Tensor linear_forward(const at::Tensor& x_tk, const LinearGroup& group);
// Returns dX (undefined unless wanted) and adds to the weights' gradients.
at::Tensor linear_backward(const at::Tensor& x_tk, const at::Tensor& dy_tn, LinearGroup& group, bool want_dx);
}  // namespace aten

}  // namespace halftone
