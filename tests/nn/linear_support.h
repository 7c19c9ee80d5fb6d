#pragma once
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <string>

#include "halftone/config/layer_recipe.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/stored_weight.h"
#include "ops/test_device.h"

// One linear layer with its gradients, outside any model, on the running test's device.
namespace halftone::nn {

// 20 log10(|reference| / |reference - y|); equal tensors give 1e9, any NaN gives NaN (numerics.md section 13).
inline double sqnr(const at::Tensor& reference, const at::Tensor& y) {
  const at::Tensor r = reference.to(at::kDouble), e = r - y.to(at::kDouble).to(r.device());
  const double error = e.norm().item<double>();
  return error == 0 ? 1e9 : 20 * std::log10(r.norm().item<double>() / error);
}

// Standard normal numbers from the CPU's generator, the same on every device.
inline at::Tensor normal(at::IntArrayRef shape, at::ScalarType type = at::kFloat) { return at::randn(shape).to(type).to(test_device()); }
inline at::TensorOptions on_device(at::ScalarType type = at::kFloat) { return at::TensorOptions().device(test_device()).dtype(type); }

// Data sets of numerics.md section 13.
inline at::Tensor data_r(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  return normal(shape, at::kBFloat16);
}
inline at::Tensor data_o(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  const at::Tensor x = at::randn(shape).to(at::kBFloat16), mask = at::rand(shape).lt(0.005).to(at::kBFloat16);
  return (x + (at::randn(shape).to(at::kBFloat16) * 100) * mask).to(test_device());
}

struct LinearResult {
  at::Tensor y, dx, dw, db;
};

// Y, dX and dW of a layer with weight w under the recipe, for a given dY.
class OneLinear {
 public:
  OneLinear(const at::Tensor& w, const LinearRecipe& recipe, const at::Tensor& bias = {}) {
    weight_.name = "layers.0.feed_forward.w1.weight";
    weight_.value = w.detach().clone().set_requires_grad(true);
    weight_.grad = at::zeros(w.sizes(), w.options().dtype(at::kFloat));
    fused_.weights = {&weight_};
    fused_.recipe = recipe;
    if (bias.defined()) {
      bias_.name = "layers.0.feed_forward.w1.bias";
      bias_.value = bias, bias_.grad = at::zeros(bias.sizes(), bias.options().dtype(at::kFloat));
      fused_.biases = {&bias_};
    }
  }
  // One forward pass and `times` backward passes: dX and dW are their sums.
  LinearResult run(const at::Tensor& x_in, const at::Tensor& dy, int times = 1) {
    const at::Tensor x = x_in.detach().clone().set_requires_grad(true);
    weight_.grad.zero_();
    at::AutoGradMode grad(true);
    const at::Tensor y = linear(x, fused_, test_step());
    for (int i = 1; i <= times; ++i) torch::autograd::backward({y}, {dy}, /*retain_graph=*/i < times);
    return {y.detach(), x.grad(), weight_.grad.clone(), bias_.grad};
  }
  at::Tensor forward(const at::Tensor& x) {
    at::NoGradGuard no_grad;
    return linear(x, fused_, test_step());
  }
  // Converts the weight to codes without a master copy.
  void store_weight(const OperandSpec& spec) {
    const at::Tensor w = weight_.value.detach().to(at::kFloat).contiguous();
    weight_.stored = std::make_shared<StoredWeight>(allocate_stored(spec, w.size(0), w.size(1), w.device()));
    store(w, {}, *weight_.stored);
    weight_.value = at::full({1}, std::nan(""), weight_.value.options()).expand(w.sizes()).detach().set_requires_grad(true);
  }
  Weight& weight() { return weight_; }
  FusedLinears& fused() { return fused_; }

 private:
  Weight weight_, bias_;
  FusedLinears fused_;
};

// fp64 GEMMs of the unmodified operands.
inline LinearResult exact(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy) {
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble), dyd = dy.to(at::kDouble);
  return {at::mm(xd, wd.t()), at::mm(dyd, wd), at::mm(dyd.t(), xd), dyd.sum(0)};
}

}  // namespace halftone::nn
