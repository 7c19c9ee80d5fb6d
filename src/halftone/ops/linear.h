#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/formats/recipe.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/weight.h"

namespace halftone {

// What copies of a group's weights were made of: the weights' versions and, where they are rounded stochastically, the step whose
// draws they took, so that a pass between two steps (validation, a measurement) leaves nothing behind that the next step would read.
struct WeightState {
  uint64_t version = 0;
  std::optional<uint32_t> step;
  bool operator==(const WeightState&) const = default;
};

// Copies of a group's weights in the form that the products read.
struct PreparedWeights {
  WeightState made_of;
  virtual ~PreparedWeights() = default;
};

// One or several weights [N_i, K] that read the same input under the same recipe (wq|wk|wv, w1|w3): the input is
// quantised once, every weight keeps its own scales, so the group computes exactly what its members would. The random
// draws of X and the signs of a rotation are keyed by the first weight's name.
struct LinearGroup {
  std::vector<Weight*> weights;
  std::vector<Weight*> biases;  // [N_i] or null, one per weight; or none at all
  LinearRecipe recipe = kLinearRecipes[0];
  std::shared_ptr<GradientAmax> dy_amax;      // where the op that reads Y puts those of dY, one for each weight; null: nowhere
  std::shared_ptr<PreparedWeights> prepared;  // of the last call

  int64_t in_features() const { return weights.front()->value.size(1); }
  int64_t out_features() const;
  WeightState weight_state(const StepContext& step) const;
  bool has_bias() const;
  void gradients_ready();  // tells the owners of weights and biases
};

// Y[..., sum N_i] = X[..., K] . [W_0; W_1; ...]^T + [b_0, b_1, ...]. Operands and rounding by `recipe` (numerics.md
// section 7); backward returns dX in X's dtype and adds each dW_i and db_i to its weight's fp32 gradient.
at::Tensor linear(const Activation& x, LinearGroup& group, const StepContext& step);

// The same without autograd, on X[T, K].
struct LinearOptions {
  StepContext step{};
  bool keep = false;      // what backward needs
  at::ScalarType out{};   // dtype of y: X's own or float32
  int64_t first_row = 0;  // index of X's first row among the rows of the micro-batch (numerics.md section 4)
  at::Tensor x_amax{};    // of X where it is known (ops/activation.h)
  // Makes X again from what its producer keeps anyway, for a group of one weight. Where wgrad reads X as it is, the call may drop X and
  // ask for it once, after dgrad and before wgrad. It owns the dX that it is given, and may write over it: backward then returns none.
  std::function<at::Tensor(at::Tensor dx)> x_again{};
};
struct LinearCall {
  at::Tensor y;
  // (dY[T, sum N_i], want_dx) -> dX, undefined unless wanted; adds to the weights' gradients. Empty unless `keep`. The largest
  // magnitudes of dY are those of the weights' parts of it.
  std::function<at::Tensor(const Activation&, bool)> backward;
};
LinearCall linear_call(const at::Tensor& x_tk, LinearGroup& group, const LinearOptions& options);

}  // namespace halftone
