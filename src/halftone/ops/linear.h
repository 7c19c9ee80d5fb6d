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

class WeightSource;  // where GEMMs get their weights (ops/weight_source.h)
const WeightSource& parameters();
struct PreparedWeights;  // copies of weights in the form that the GEMMs read (linear.cpp)
struct ExpertSlices;     // the experts as dense layers, on the CPU (grouped_linear.cpp)

// One or several weights [N_i, K] that read the same input under the same recipe (wq|wk|wv, w1|w3): the input is quantised once, every
// weight keeps its own scales, so the result equals that of separate layers exactly. The random draws of X and the signs of a rotation are
// keyed by the first weight's name. Weights of experts are [E, N_i, K] (ops/grouped_linear.h).
struct FusedLinears {
  std::vector<Weight*> weights;
  std::vector<Weight*> biases;  // [N_i] or null, one per weight; or none at all
  LinearRecipe recipe = kLinearRecipes[0];
  std::shared_ptr<GradientAmax> dy_amax;  // where the op that reads Y puts the amax of dY, one per weight; null: nowhere
  const WeightSource* source = &parameters();
  std::shared_ptr<PreparedWeights> prepared;  // cached from the last call
  std::shared_ptr<ExpertSlices> slices;
  std::array<bool, 3> logged = {};  // products already reported in the debug log

  int64_t in_features() const { return weights.front()->value.size(-1); }
  int64_t out_features() const;
  void gradients_ready();  // notifies the owners of weights and biases
};

// Y[..., sum N_i] = X[..., K] . [W_0; W_1; ...]^T + [b_0, b_1, ...]. Operands and rounding by `recipe` (numerics.md section 7); backward
// returns dX in X's dtype and adds each dW_i and db_i to its weight's fp32 gradient. Y in X's dtype or in `out`.
at::Tensor linear(const Activation& x, FusedLinears& fused, const StepContext& step, at::ScalarType out = at::ScalarType::Undefined,
                  const RowShares& shares = {});

// Whether GEMMs of the recipe may shard rows: every quantised row-wise operand has per-row scales, or one from the amax of the full tensor,
// so that the codes equal those of the full matrix.
bool can_share_rows(const LinearRecipe& recipe);

// The same without autograd, on X[T, K].
struct LinearOptions {
  StepContext step{};
  bool keep = false;      // keep what backward needs
  at::ScalarType out{};   // dtype of y: X's own or float32
  int64_t first_row = 0;  // index of X's first row within the micro-batch (numerics.md section 4)
  at::Tensor x_amax{};    // amax of X if it is known (ops/activation.h)
  // Recomputes X from tensors that its producer keeps anyway: unless wgrad reads the forward codes, nothing of X is kept, and wgrad
  // quantises it again. Called in wgrad, at most once.
  std::function<at::Tensor()> x_again{};
  at::Tensor y{};  // output for y, [T, sum N_i] with unit column stride; undefined: allocated
  // X and dX, or Y and dY, are this rank's row shards. A sharded X is all-gathered as codes if the forward GEMM reads codes. If wgrad does
  // not read those codes, X itself is gathered again in backward, and only the local rows are kept between the passes.
  RowShares shares{};
  bool product = true;  // false: y is not computed, for a backward pass whose forward pass was another call
};
struct LinearCall {
  at::Tensor y;
  // Backward in two parts, empty unless `keep`. dgrad: (dY[T, sum N_i], want_dx) -> dX, undefined unless wanted. wgrad: accumulates the
  // weights' gradients, at any later time before the weights change. dY is read, and quantised for both, in dgrad. The amax of dY has one
  // value per weight, for its columns.
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
