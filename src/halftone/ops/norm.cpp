#include "halftone/ops/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "halftone/fused/rms_norm.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/common.h"
#include "halftone/ops/node.h"

namespace halftone {
namespace {

struct Forward {
  at::Tensor sum, y, rstd;
};

Forward forward(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& w, double eps) {
  Forward f;
  if (!x.is_cpu()) {
    f.sum = branch.defined() ? x + branch : x.detach();
    std::tie(f.y, f.rstd) = aten::rms_norm(f.sum, w, eps);
    return f;
  }
  f.sum = branch.defined() ? at::empty_like(x) : x.detach();
  f.y = at::empty_like(x);
  f.rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  RmsNormForward p;
  p.rows = x.size(0), p.cols = x.size(1), p.dtype = kernel_dtype(x), p.weight_dtype = kernel_dtype(w);
  p.x = x.const_data_ptr(), p.x_stride = x.stride(0);
  if (branch.defined()) {
    p.residual = branch.const_data_ptr(), p.residual_stride = branch.stride(0);
    p.sum = f.sum.data_ptr(), p.sum_stride = f.sum.stride(0);
  }
  p.weight = w.const_data_ptr(), p.eps = static_cast<float>(eps);
  p.y = f.y.data_ptr(), p.y_stride = f.y.stride(0), p.rstd = f.rstd.mutable_data_ptr<float>();
  rms_norm_forward(p);
  return f;
}

// d_sum may be undefined (nothing else reads the residual).
at::Tensor backward(const at::Tensor& d_sum, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, Weight& weight) {
  if (!x.is_cpu()) {
    auto [dx, dw] = aten::rms_norm_backward(dy, x, rstd, weight.value.detach());
    if (weight.trainable()) weight.grad.add_(dw);
    return d_sum.defined() ? dx.add_(d_sum) : dx;
  }
  at::Tensor dx = at::empty_like(x);
  const at::Tensor w = weight.value.detach();
  RmsNormBackward p;
  p.rows = x.size(0), p.cols = x.size(1), p.dtype = kernel_dtype(x), p.weight_dtype = kernel_dtype(w);
  p.x = x.const_data_ptr(), p.x_stride = x.stride(0);
  p.weight = w.const_data_ptr(), p.rstd = rstd.const_data_ptr<float>();
  p.dy = dy.const_data_ptr(), p.dy_stride = dy.stride(0);
  if (d_sum.defined()) p.residual_grad = d_sum.const_data_ptr(), p.residual_grad_stride = d_sum.stride(0);
  p.dx = dx.data_ptr(), p.dx_stride = dx.stride(0);
  if (weight.trainable()) p.dw = weight.grad.mutable_data_ptr<float>();
  rms_norm_backward(p);
  return dx;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& branch, Weight& weight, double eps) {
  check(x.dim() == 2 && x.size(1) == weight.value.numel(), "{}: expected an input of [tokens, {}], found {}", weight.name,
        weight.value.numel(), fmt::join(x.sizes(), " x "));
  check(!branch.defined() || (branch.sizes() == x.sizes() && branch.scalar_type() == x.scalar_type()),
        "{}: residual and branch differ in shape or dtype", weight.name);
  const bool recording = records(x, branch, weight.value);
  Forward f;
  {
    at::NoGradGuard no_grad;
    f = forward(x.detach().contiguous(), branch.defined() ? branch.detach().contiguous() : branch, weight.value.detach(), eps);
  }
  if (!recording) return {f.sum, f.y};
  at::Tensor sum = f.sum.detach();
  connect("add_rms_norm", {x, branch, weight.value}, {&sum, &f.y},
          [x_new = f.sum, rstd = f.rstd, &weight](const variable_list& g) -> variable_list {
            if (!g[1].defined()) return {g[0], g[0], at::Tensor()};
            const at::Tensor dx = backward(g[0].defined() ? g[0].contiguous() : g[0], g[1].contiguous(), x_new, rstd, weight);
            weight.grad_ready();
            return {dx, dx, at::Tensor()};
          });
  return {sum, f.y};
}

}  // namespace halftone
