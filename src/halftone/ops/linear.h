#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "halftone/formats/recipe.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/row_exchange.h"
#include "halftone/ops/weight.h"

namespace halftone {

class WeightSource;  // where the products get their weights (ops/weight_source.h)
const WeightSource& parameters();
struct PreparedWeights;  // copies of weights in the form that the products read (linear.cpp)

// One or several weights [N_i, K] that read the same input under the same recipe (wq|wk|wv, w1|w3): the input is
// quantised once, every weight keeps its own scales, so together they compute exactly what each would alone. The random
// draws of X and the signs of a rotation are keyed by the first weight's name.
struct FusedLinears {
  std::vector<Weight*> weights;
  std::vector<Weight*> biases;  // [N_i] or null, one per weight; or none at all
  LinearRecipe recipe = kLinearRecipes[0];
  std::shared_ptr<GradientAmax> dy_amax;  // where the op that reads Y puts those of dY, one for each weight; null: nowhere
  const WeightSource* source = &parameters();
  std::shared_ptr<PreparedWeights> prepared;  // of the last call
  std::array<bool, 3> logged = {};            // products that the debug log has told of

  int64_t in_features() const { return weights.front()->value.size(1); }
  int64_t out_features() const;
  void gradients_ready();  // tells the owners of weights and biases
};

// Y[..., sum N_i] = X[..., K] . [W_0; W_1; ...]^T + [b_0, b_1, ...]. Operands and rounding by `recipe` (numerics.md
// section 7); backward returns dX in X's dtype and adds each dW_i and db_i to its weight's fp32 gradient. Y in X's dtype or in `out`.
at::Tensor linear(const Activation& x, FusedLinears& fused, const StepContext& step, at::ScalarType out = at::ScalarType::Undefined,
                  const RowShares& shares = {});

// Whether products of the recipe may share rows: what is quantised along rows has scales of these, or of the tensor's largest magnitude,
// so that codes are those of the whole.
bool can_share_rows(const LinearRecipe& recipe);

// The same without autograd, on X[T, K].
struct LinearOptions {
  StepContext step{};
  bool keep = false;      // what backward needs
  at::ScalarType out{};   // dtype of y: X's own or float32
  int64_t first_row = 0;  // index of X's first row among the rows of the micro-batch (numerics.md section 4)
  at::Tensor x_amax{};    // of X where it is known (ops/activation.h)
  // Makes X again from what its producer keeps anyway: unless wgrad reads the codes of the forward product, nothing of X is kept then, and
  // wgrad quantises it again. Called in wgrad, at most once.
  std::function<at::Tensor()> x_again{};
  at::Tensor y{};  // where y is written, [T, sum N_i] with unit column stride; undefined: in memory of its own
  // X and dX, or Y and dY, are this process's rows of them. Of a shared X codes travel where the forward product reads these; for wgrad, if
  // it does not read them, X itself comes once more in the backward pass, and between the passes nothing but this process's rows is kept.
  RowShares shares{};
  bool product = true;  // false: y is not formed, for a backward pass whose forward pass was another call
};
struct LinearCall {
  at::Tensor y;
  // Backward in two parts, empty unless `keep`: (dY[T, sum N_i], want_dx) -> dX, undefined unless wanted; then, at any later time before
  // the weights change, the one that adds to the weights' gradients. dY is read, and quantised for both, in the first. The largest
  // magnitudes of dY are those of the weights' parts of it.
  std::function<at::Tensor(const Activation&, bool)> dgrad;
  std::function<void()> wgrad;

  at::Tensor backward(const Activation& dy, bool want_dx) const {
    at::Tensor dx = dgrad(dy, want_dx);
    wgrad();
    return dx;
  }
};
LinearCall linear_call(const at::Tensor& x_tk, FusedLinears& fused, const LinearOptions& options);

}  // namespace halftone
