#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "halftone/base/error.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/quantize_aten.h"

namespace halftone::aten {
namespace {

// A[M, C] . B[N, C]^T with both operands quantised along C, one rounding to `out`.
at::Tensor scaled_product(const Quantized& a, const Quantized& b, at::ScalarType out) {
  at::Tensor acc;
  if (a.codes.scalar_type() == at::kChar) {
    acc = at::_int_mm(a.codes.contiguous(), b.codes.contiguous().t()).to(at::kFloat);
  } else {
    acc = at::mm(a.codes.to(at::kFloat), b.codes.to(at::kFloat).t());
  }
  return (acc * a.scale * b.scale.t()).to(out);
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x_tk, const LinearGroup& group) {
  std::vector<at::Tensor> parts;
  const LinearRecipe& r = group.recipe;
  Quantized x;
  if (r.x_forward.quantized()) x = quantize_rows(x_tk, r.x_forward, group.weights.front()->name + "#x.fwd");
  for (const Weight* w : group.weights) {
    const at::Tensor value = w->value.detach();
    parts.push_back(
        r.x_forward.quantized()
            ? scaled_product(x, quantize_rows(value, r.w_forward, w->name + "#w.fwd", false, Operand::weight), x_tk.scalar_type())
            : at::mm(x_tk, value.t()));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

at::Tensor linear_backward(const at::Tensor& x_tk, const at::Tensor& dy_tn, LinearGroup& group, bool want_dx) {
  const LinearRecipe& r = group.recipe;
  Quantized x_columns;
  if (r.x_wgrad.quantized()) x_columns = quantize_rows(x_tk.t(), r.x_wgrad, group.weights.front()->name + "#x.wgrad", true);
  at::Tensor dx;
  int64_t n0 = 0;
  for (Weight* w : group.weights) {
    const at::Tensor value = w->value.detach();
    const at::Tensor dy = dy_tn.narrow(1, n0, value.size(0));
    n0 += value.size(0);
    if (want_dx) {
      const at::Tensor part =
          r.dy_dgrad.quantized()
              ? scaled_product(quantize_rows(dy, r.dy_dgrad, w->name + "#dy.dgrad"),
                               quantize_rows(value.t(), r.w_dgrad, w->name + "#w.dgrad", true, Operand::weight), x_tk.scalar_type())
              : at::mm(dy, value);
      dx = dx.defined() ? dx.add_(part) : part;
    }
    if (w->trainable()) {
      w->grad.add_(r.dy_wgrad.quantized()
                       ? scaled_product(quantize_rows(dy.t(), r.dy_wgrad, w->name + "#dy.wgrad", true), x_columns, at::kFloat)
                       : at::mm(dy.t(), x_tk));
    }
  }
  return dx;
}

}  // namespace halftone::aten
