// torch.ops.halftone: rms_norm, swiglu and linear_cross_entropy, the fused ops around a linear layer.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "halftone/ops/common.h"
#include "halftone/ops/head_loss.h"
#include "halftone/ops/norm.h"
#include "halftone/ops/swiglu.h"
#include "halftone/torch_ops/format.h"
#include "halftone/torch_ops/layer.h"

namespace halftone::library {
namespace {

using at::Tensor;
using c10::SymInt;
using Text = std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

template <class F>
auto schema(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

void check_norm(const Tensor& x, const Tensor& w) {
  kernel_dtype(x), kernel_dtype(w);
  check_beside("halftone.rms_norm", "weight", w, x);
  if (x.dim() < 1 || w.dim() != 1 || x.sym_size(-1) != w.sym_size(0) || TORCH_GUARD_OR_FALSE(w.sym_size(0).sym_eq(0)))
    fail("halftone.rms_norm: expected x[..., D] and weight[D] with D of at least 1, found {} and {}", shape(x), shape(w));
  check(w.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat,
        "halftone.rms_norm: expected x in float32 beside a weight in float32, found {}", c10::toString(x.scalar_type()));
}

// y in weight's dtype.
Tensor rms_norm_op(const Tensor& x, const Tensor& w, double eps) {
  check_norm(x, w);
  const c10::DeviceGuard device(x.device());
  const at::NoGradGuard no_grad;
  Weight weight;
  weight.name = "halftone.rms_norm", weight.value = w.detach().contiguous();
  return add_rms_norm(rows_of(x), Tensor(), weight, eps).second.value.view(x.sizes());
}
Tensor rms_norm_meta(const Tensor& x, const Tensor& w, double) {
  check_norm(x, w);
  return at::empty_symint(x.sym_sizes(), x.options().dtype(w.scalar_type()));
}
void check_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w) {
  check_norm(x, w), kernel_dtype(dy), check_beside("halftone.rms_norm_backward", "dy", dy, x);
  if (dy.sym_sizes() != x.sym_sizes()) fail("halftone.rms_norm_backward: expected dy of the shape of x, {}, found {}", shape(x), shape(dy));
}
Two rms_norm_backward_op(const Tensor& dy, const Tensor& x, const Tensor& w, double eps) {
  check_norm_backward(dy, x, w);
  const c10::DeviceGuard device(x.device());
  Weight weight;
  weight.name = "halftone.rms_norm", weight.value = w.detach().contiguous();
  want_gradient(weight);
  const Tensor input = rows_of(x).requires_grad_(true);
  Tensor sum, y;
  {
    const at::AutoGradMode recording(true);
    std::tie(sum, y) = add_rms_norm(input, Tensor(), weight, eps);
  }
  const at::NoGradGuard no_grad;
  const variable_list grads = (*y.grad_fn())({Tensor(), rows_of(dy).to(w.scalar_type())});
  return {grads[0].view(x.sizes()), weight.grad.to(w.scalar_type())};
}
Two rms_norm_backward_meta(const Tensor& dy, const Tensor& x, const Tensor& w, double) {
  check_norm_backward(dy, x, w);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(w.sym_sizes(), w.options())};
}

class RmsNorm : public Function<RmsNorm> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = schema<Tensor(const Tensor&, const Tensor&, double)>("halftone::rms_norm");
    ctx->save_for_backward({x, w});
    ctx->saved_data["eps"] = eps;
    return op.call(x, w, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    static const auto op = schema<Two(const Tensor&, const Tensor&, const Tensor&, double)>("halftone::rms_norm_backward");
    const variable_list saved = ctx->get_saved_variables();
    auto [dx, dw] = op.call(dy[0], saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    return {dx, dw, Tensor()};
  }
};
Tensor rms_norm_autograd(const Tensor& x, const Tensor& w, double eps) { return RmsNorm::apply(x, w, eps); }

void check_swiglu(const char* op, const Tensor& gu) {
  kernel_dtype(gu);
  if (gu.dim() < 1 || gu.sym_size(-1) % 2 != 0 || TORCH_GUARD_OR_FALSE(gu.sym_size(-1).sym_eq(0)))
    fail("{}: expected gu[..., 2F] with F of at least 1, found {}", op, shape(gu));
}
Tensor swiglu_op(const Tensor& gu) {
  check_swiglu("halftone.swiglu", gu);
  const c10::DeviceGuard device(gu.device());
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes = gu.sizes().vec();
  sizes.back() /= 2;
  return swiglu(rows_of(gu)).value.view(sizes);
}
Tensor swiglu_meta(const Tensor& gu) {
  check_swiglu("halftone.swiglu", gu);
  std::vector<SymInt> sizes = gu.sym_sizes().vec();
  sizes.back() = sizes.back() / 2;
  return at::empty_symint(sizes, gu.options());
}
void check_swiglu_backward(const Tensor& dh, const Tensor& gu) {
  constexpr auto kOp = "halftone.swiglu_backward";
  check_swiglu(kOp, gu), kernel_dtype(dh), check_beside(kOp, "dh", dh, gu);
  bool same = dh.dim() == gu.dim() && dh.sym_size(-1) * 2 == gu.sym_size(-1);
  for (int64_t i = 0; same && i + 1 < gu.dim(); ++i) same = dh.sym_size(i) == gu.sym_size(i);
  if (!same) fail("{}: expected gu[..., 2F] and dh[..., F], found {} and {}", kOp, shape(gu), shape(dh));
}
Tensor swiglu_backward_op(const Tensor& dh, const Tensor& gu) {
  check_swiglu_backward(dh, gu);
  const c10::DeviceGuard device(gu.device());
  const Tensor input = rows_of(gu).requires_grad_(true);
  Tensor h;
  {
    const at::AutoGradMode recording(true);
    h = swiglu(input);
  }
  const at::NoGradGuard no_grad;
  return (*h.grad_fn())({rows_of(dh).to(h.scalar_type())})[0].view(gu.sizes());
}
Tensor swiglu_backward_meta(const Tensor& dh, const Tensor& gu) {
  check_swiglu_backward(dh, gu);
  return at::empty_symint(gu.sym_sizes(), gu.options());
}

class Swiglu : public Function<Swiglu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = schema<Tensor(const Tensor&)>("halftone::swiglu");
    ctx->save_for_backward({gu});
    return op.call(gu);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dh) {
    static const auto op = schema<Tensor(const Tensor&, const Tensor&)>("halftone::swiglu_backward");
    return {op.call(dh[0], ctx->get_saved_variables()[0])};
  }
};
Tensor swiglu_autograd(const Tensor& gu) { return Swiglu::apply(gu); }

// LM head and cross-entropy in chunks of rows (ops/head_loss.h): mean loss over the labels that are not -100, with its gradients computed
// in the same pass.
void check_cross_entropy(const Tensor& x, const Tensor& w, const Tensor& labels, const MaybeTensor& step) {
  constexpr auto kOp = "halftone.linear_cross_entropy";
  check_step(step, x), check_linear(kOp, x, w, std::nullopt), check_beside(kOp, "labels", labels, x);
  if (x.dim() != 2 || labels.dim() != 1 || labels.sym_size(0) != x.sym_size(0) || labels.scalar_type() != at::kLong)
    fail("{}: expected x[T, K] and int64 labels[T], found {} and {} in {}", kOp, shape(x), shape(labels),
         c10::toString(labels.scalar_type()));
}
Three cross_entropy_op(const Tensor& x, const Tensor& w, const Tensor& labels, Text recipe, Text options, Text name, int64_t seed,
                       const MaybeTensor& step, int64_t first_row, std::array<bool, 2> wanted) {
  check_cross_entropy(x, w, labels, step);
  const c10::DeviceGuard device(x.device());
  Layer layer(w, std::nullopt, recipe, options, name);
  const bool training = wanted[0] || wanted[1];
  if (training) want_gradient(layer.weight);
  const Tensor input = x.detach();
  input.requires_grad_(training);
  const at::AutoGradMode recording(training);
  // Counted on the device: no synchronization, so a graph can capture it.
  const Tensor per_label = labels.ne(-100).sum().clamp_min(1).to(at::kDouble).reciprocal();
  const HeadLoss result = head_loss(input, head_of(layer.fused), labels.contiguous(), 1, step_context(seed, step, first_row), per_label);
  const Tensor none = at::empty({0}, x.options());
  Tensor dx = none;
  if (training) dx = (*result.loss.grad_fn())({at::ones({}, result.loss.options())})[0];
  const at::NoGradGuard no_grad;
  return {result.loss.detach().clone(), wanted[0] ? dx.to(x.scalar_type()) : none.clone(),
          wanted[1] ? layer.weight.grad.to(w.scalar_type()) : none.clone()};
}

Three cross_entropy_meta(const Tensor& x, const Tensor& w, const Tensor& labels, Text recipe, Text options, Text name, SymInt,
                         const MaybeTensor& step, SymInt, std::array<bool, 2> wanted) {
  check_cross_entropy(x, w, labels, step);
  check_multiples(parse_recipe(std::string(recipe), std::string(options), std::string(name)), recipe, w, name);
  const auto like = [&](bool want, const Tensor& t) {
    return want ? at::empty_symint(t.sym_sizes(), t.options()) : at::empty_symint({SymInt(0)}, x.options());
  };
  return {at::empty_symint({}, x.options().dtype(at::kFloat)), like(wanted[0], x), like(wanted[1], w)};
}

using CrossEntropyOp = Three(const Tensor&, const Tensor&, const Tensor&, Text, Text, Text, SymInt, const MaybeTensor&, SymInt,
                             std::array<bool, 2>);

// Backward of a gradient that was computed with the loss. A separate op without a derivative: PyTorch would treat the gradient as a
// constant.
Tensor gradient_times_op(const Tensor& gradient, const Tensor& by) { return (gradient * by).to(gradient.scalar_type()); }
Tensor gradient_times_meta(const Tensor& gradient, const Tensor&) { return at::empty_symint(gradient.sym_sizes(), gradient.options()); }

// Gradients are computed with the loss; backward only scales them.
class CrossEntropy : public Function<CrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, const Tensor& labels, const std::string& recipe,
                        const std::string& options, const std::string& name, const SymInt& seed, const MaybeTensor& step,
                        const SymInt& first_row, bool want_x, bool want_w) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = schema<CrossEntropyOp>("halftone::linear_cross_entropy_with_gradients");
    auto [loss, dx, dw] = op.call(x, w, labels, recipe, options, name, seed, step, first_row, {want_x, want_w});
    ctx->save_for_backward({dx, dw});
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dl) {
    static const auto op = schema<Tensor(const Tensor&, const Tensor&)>("halftone::linear_cross_entropy_backward");
    const variable_list saved = ctx->get_saved_variables();
    variable_list grads(11);
    for (size_t i : {0, 1}) {
      if (ctx->needs_input_grad(i)) grads[i] = op.call(saved[i], dl[0]);
    }
    return grads;
  }
};
Tensor cross_entropy_autograd(const Tensor& x, const Tensor& w, const Tensor& labels, Text recipe, Text options, Text name, SymInt seed,
                              const MaybeTensor& step, SymInt first_row) {
  const bool training = at::GradMode::is_enabled();
  return CrossEntropy::apply(x, w, labels, std::string(recipe), std::string(options), std::string(name), std::move(seed), step,
                             std::move(first_row), training && x.requires_grad(), training && w.requires_grad());
}
Tensor cross_entropy(const Tensor& x, const Tensor& w, const Tensor& labels, Text recipe, Text options, Text name, SymInt seed,
                     const MaybeTensor& step, SymInt first_row) {
  static const auto op = schema<CrossEntropyOp>("halftone::linear_cross_entropy_with_gradients");
  return std::get<0>(op.call(x, w, labels, recipe, options, name, std::move(seed), step, std::move(first_row), {false, false}));
}

void devices(torch::Library& m) {
  m.impl("rms_norm", &rms_norm_op), m.impl("rms_norm_backward", &rms_norm_backward_op);
  m.impl("swiglu", &swiglu_op), m.impl("swiglu_backward", &swiglu_backward_op);
  m.impl("linear_cross_entropy_with_gradients", &cross_entropy_op), m.impl("linear_cross_entropy_backward", &gradient_times_op);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(halftone, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("rms_norm(Tensor x, Tensor weight, float eps=1e-5) -> Tensor", tags);
  m.def("rms_norm_backward(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor dx, Tensor dw)", tags);
  m.def("swiglu(Tensor gu) -> Tensor", tags);
  m.def("swiglu_backward(Tensor dh, Tensor gu) -> Tensor", tags);
  m.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor labels, str recipe='none', str options='', *, str name='output.weight', "
      "SymInt seed=0, Tensor? step=None, SymInt first_row=0) -> Tensor",
      tags);
  m.def(
      "linear_cross_entropy_with_gradients(Tensor x, Tensor weight, Tensor labels, str recipe, str options, str name, SymInt seed, Tensor? "
      "step, "
      "SymInt first_row, bool[2] wanted) -> (Tensor loss, Tensor dx, Tensor dw)",
      tags);
  m.def("linear_cross_entropy_backward(Tensor gradient, Tensor dloss) -> Tensor", tags);
}
TORCH_LIBRARY_IMPL(halftone, CPU, m) { devices(m); }
TORCH_LIBRARY_IMPL(halftone, CUDA, m) { devices(m); }
TORCH_LIBRARY_IMPL(halftone, Meta, m) {
  m.impl("rms_norm", &rms_norm_meta), m.impl("rms_norm_backward", &rms_norm_backward_meta);
  m.impl("swiglu", &swiglu_meta), m.impl("swiglu_backward", &swiglu_backward_meta);
  m.impl("linear_cross_entropy_with_gradients", &cross_entropy_meta), m.impl("linear_cross_entropy_backward", &gradient_times_meta);
}
TORCH_LIBRARY_IMPL(halftone, CompositeExplicitAutograd, m) { m.impl("linear_cross_entropy", &cross_entropy); }
TORCH_LIBRARY_IMPL(halftone, Autograd, m) {
  m.impl("rms_norm", &rms_norm_autograd), m.impl("swiglu", &swiglu_autograd), m.impl("linear_cross_entropy", &cross_entropy_autograd);
  for (const char* name :
       {"rms_norm_backward", "swiglu_backward", "linear_cross_entropy_with_gradients", "linear_cross_entropy_backward"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace halftone::library
