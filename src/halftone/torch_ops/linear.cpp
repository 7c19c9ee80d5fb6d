// torch.ops.halftone.linear in every recipe, on the code path of nn::Linear (ops/linear.h).
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "halftone/ops/common.h"
#include "halftone/torch_ops/format.h"
#include "halftone/torch_ops/layer.h"

namespace halftone::library {
namespace {

using at::Tensor;
using c10::SymInt;
using Text = std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Tensor linear_op(const Tensor& x, const Tensor& w, const MaybeTensor& bias, Text recipe, Text options, Text name, int64_t seed,
                 const MaybeTensor& step, int64_t first_row) {
  check_step(step, x), check_linear("halftone.linear", x, w, bias);
  const c10::DeviceGuard device(x.device());
  Layer layer(w, bias, recipe, options, name);
  LinearOptions o;
  o.step = step_context(seed, step, first_row), o.out = x.scalar_type();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(0);
  return linear_call(rows_of(x), layer.fused, o).y.view(shape);
}

Tensor linear_meta(const Tensor& x, const Tensor& w, const MaybeTensor& bias, Text recipe, Text options, Text name, SymInt,
                   const MaybeTensor& step, SymInt) {
  check_step(step, x), check_linear("halftone.linear", x, w, bias);
  check_multiples(parse_recipe(std::string(recipe), std::string(options), std::string(name)), recipe, w, name);
  std::vector<SymInt> shape = x.sym_sizes().vec();
  shape.back() = w.sym_size(0);
  return at::empty_symint(shape, x.options());
}

void check_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const MaybeTensor& bias, const MaybeTensor& step,
                    std::array<bool, 3> wanted) {
  constexpr auto kOp = "halftone.linear_backward";
  check_step(step, x), check_linear(kOp, x, w, bias), kernel_dtype(dy), check_beside(kOp, "dy", dy, x);
  bool same = dy.dim() == x.dim() && dy.sym_size(-1) == w.sym_size(0);
  for (int64_t i = 0; same && i + 1 < x.dim(); ++i) same = dy.sym_size(i) == x.sym_size(i);
  if (!same) fail("{}: expected dy[..., N] beside x{} and weight{}, found {}", kOp, shape(x), shape(w), shape(dy));
  check(!wanted[2] || present(bias), "{}: the gradient of a bias is wanted, but there is no bias", kOp);
}

// {dx, dw, db}, an empty tensor for those not wanted. X and W are quantised again as in the forward pass, with the same draws.
Three linear_backward_op(const Tensor& dy, const Tensor& x, const Tensor& w, const MaybeTensor& bias, Text recipe, Text options, Text name,
                         int64_t seed, const MaybeTensor& step, int64_t first_row, std::array<bool, 3> wanted) {
  check_backward(dy, x, w, bias, step, wanted);
  const c10::DeviceGuard device(x.device());
  Layer layer(w, bias, recipe, options, name);
  if (wanted[1]) want_gradient(layer.weight);
  if (wanted[2]) want_gradient(layer.bias);
  LinearCall call = backward_call(rows_of(x), layer.fused, step_context(seed, step, first_row));
  const Tensor dx = call.backward(rows_of(dy), wanted[0]);
  const Tensor none = at::empty({0}, x.options());
  return {wanted[0] ? dx.to(x.scalar_type()).view(x.sizes()) : none, wanted[1] ? layer.weight.grad.to(w.scalar_type()) : none.clone(),
          wanted[2] ? layer.bias.grad.to(bias->scalar_type()) : none.clone()};
}

Three linear_backward_meta(const Tensor& dy, const Tensor& x, const Tensor& w, const MaybeTensor& bias, Text recipe, Text options,
                           Text name, SymInt, const MaybeTensor& step, SymInt, std::array<bool, 3> wanted) {
  check_backward(dy, x, w, bias, step, wanted);
  check_multiples(parse_recipe(std::string(recipe), std::string(options), std::string(name)), recipe, w, name);
  const auto like = [&](bool want, const Tensor& t) {
    return want ? at::empty_symint(t.sym_sizes(), t.options()) : at::empty_symint({SymInt(0)}, x.options());
  };
  return {like(wanted[0], x), like(wanted[1], w), like(wanted[2], wanted[2] ? *bias : x)};
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, const MaybeTensor& bias, const std::string& recipe,
                        const std::string& options, const std::string& name, const SymInt& seed, const MaybeTensor& step,
                        const SymInt& first_row) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("halftone::linear", "")
            .typed<Tensor(const Tensor&, const Tensor&, const MaybeTensor&, Text, Text, Text, SymInt, const MaybeTensor&, SymInt)>();
    ctx->save_for_backward({x, w, bias.value_or(Tensor()), step.value_or(Tensor())});
    ctx->saved_data["recipe"] = recipe, ctx->saved_data["options"] = options, ctx->saved_data["name"] = name;
    ctx->saved_data["seed"] = seed, ctx->saved_data["first_row"] = first_row;
    return op.call(x, w, bias, recipe, options, name, seed, step, first_row);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("halftone::linear_backward", "")
                               .typed<Three(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, Text, Text, Text, SymInt,
                                            const MaybeTensor&, SymInt, std::array<bool, 3>)>();
    const variable_list saved = ctx->get_saved_variables();
    const MaybeTensor bias = saved[2].defined() ? MaybeTensor(saved[2]) : std::nullopt,
                      step = saved[3].defined() ? MaybeTensor(saved[3]) : std::nullopt;
    const std::array<bool, 3> wanted = {ctx->needs_input_grad(0), ctx->needs_input_grad(1), bias.has_value() && ctx->needs_input_grad(2)};
    auto& data = ctx->saved_data;
    auto [dx, dw, db] = op.call(dy[0], saved[0], saved[1], bias, data["recipe"].toStringRef(), data["options"].toStringRef(),
                                data["name"].toStringRef(), data["seed"].toSymInt(), step, data["first_row"].toSymInt(), wanted);
    variable_list grads(9);
    if (wanted[0]) grads[0] = dx;
    if (wanted[1]) grads[1] = dw;
    if (wanted[2]) grads[2] = db;
    return grads;
  }
};

Tensor linear_autograd(const Tensor& x, const Tensor& w, const MaybeTensor& bias, Text recipe, Text options, Text name, SymInt seed,
                       const MaybeTensor& step, SymInt first_row) {
  return LinearFunction::apply(x, w, bias, std::string(recipe), std::string(options), std::string(name), std::move(seed), step,
                               std::move(first_row));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(halftone, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "linear(Tensor x, Tensor weight, Tensor? bias, str recipe, str options='', *, str name='weight', SymInt seed=0, Tensor? step=None, "
      "SymInt first_row=0) -> Tensor",
      tags);
  m.def(
      "linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias, str recipe, str options, str name, SymInt seed, Tensor? step, "
      "SymInt first_row, bool[3] wanted) -> (Tensor dx, Tensor dw, Tensor db)",
      tags);
}
TORCH_LIBRARY_IMPL(halftone, CPU, m) { m.impl("linear", &linear_op), m.impl("linear_backward", &linear_backward_op); }
TORCH_LIBRARY_IMPL(halftone, CUDA, m) { m.impl("linear", &linear_op), m.impl("linear_backward", &linear_backward_op); }
TORCH_LIBRARY_IMPL(halftone, Meta, m) { m.impl("linear", &linear_meta), m.impl("linear_backward", &linear_backward_meta); }
TORCH_LIBRARY_IMPL(halftone, Autograd, m) {
  m.impl("linear", &linear_autograd), m.impl("linear_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace halftone::library
