#include "halftone/ops/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "halftone/fused/rms_norm.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"

namespace halftone {
namespace {

struct Forward {
  at::Tensor sum, y, rstd, amax;
};

Forward forward(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& w, double eps, bool want_amax) {
  Forward f;
  f.sum = branch.defined() ? at::empty_like(x) : x.detach();
  f.y = at::empty_like(x, w.scalar_type());
  f.rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  RmsNormForward p;
  p.rows = x.size(0), p.cols = x.size(1), p.stream_dtype = kernel_dtype(x);
  p.dtype = p.weight_dtype = kernel_dtype(w);
  p.x = x.const_data_ptr(), p.x_stride = x.stride(0);
  if (branch.defined()) {
    p.branch = branch.const_data_ptr(), p.branch_stride = branch.stride(0);
    p.sum = f.sum.data_ptr(), p.sum_stride = f.sum.stride(0);
  }
  p.weight = w.const_data_ptr(), p.eps = static_cast<float>(eps);
  p.y = f.y.data_ptr(), p.y_stride = f.y.stride(0), p.rstd = f.rstd.mutable_data_ptr<float>();
  if (want_amax) {
    f.amax = at::empty({1}, x.options().dtype(at::kInt));
    p.amax = static_cast<uint32_t*>(f.amax.mutable_data_ptr());
  }
  if (x.is_cpu()) {
    rms_norm_forward(p);
  } else {
    cuda::launch("rms_norm", &cuda::Module::rms_norm_forward, p, x.device());
  }
  return f;
}

// Gradients of x and of the branch. d_sum may be undefined (nothing else reads the residual).
std::pair<at::Tensor, at::Tensor> backward(const at::Tensor& d_sum, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                           Weight& weight, bool branch) {
  at::Tensor dx = at::empty_like(x);
  const at::Tensor w = weight.value.detach();
  RmsNormBackward p;
  p.rows = x.size(0), p.cols = x.size(1), p.stream_dtype = kernel_dtype(x), p.dtype = p.weight_dtype = kernel_dtype(w);
  p.x = x.const_data_ptr(), p.x_stride = x.stride(0);
  p.weight = w.const_data_ptr(), p.rstd = rstd.const_data_ptr<float>();
  p.dy = dy.const_data_ptr(), p.dy_stride = dy.stride(0);
  if (d_sum.defined()) p.d_sum = d_sum.const_data_ptr(), p.d_sum_stride = d_sum.stride(0);
  p.dx = dx.data_ptr(), p.dx_stride = dx.stride(0);
  at::Tensor d_branch = branch ? dx : at::Tensor();
  if (branch && p.stream_dtype != p.dtype) {
    d_branch = at::empty_like(dy);
    p.d_branch = d_branch.data_ptr(), p.d_branch_stride = d_branch.stride(0);
  }
  if (weight.trainable()) p.dw = weight.grad_to_add().mutable_data_ptr<float>();
  if (x.is_cpu()) {
    rms_norm_backward(p);
  } else {
    const cuda::Module& m = *cuda::module();
    const at::Tensor partial = at::empty({p.dw != nullptr ? m.rms_norm_partial(p.cols) : 0}, rstd.options());
    cuda::check_launch("rms_norm", m.rms_norm_backward(&p, partial.mutable_data_ptr<float>(), cuda::current_stream(x.device())));
  }
  return {dx, d_branch};
}

}  // namespace

std::pair<at::Tensor, Activation> add_rms_norm(const at::Tensor& x, const at::Tensor& branch, Weight& weight, double eps, bool want_amax) {
  check(x.dim() == 2 && x.size(1) == weight.value.numel(), "{}: expected an input of [tokens, {}], found {}", weight.name,
        weight.value.numel(), fmt::join(x.sizes(), " x "));
  const at::ScalarType type = weight.value.scalar_type();
  check(x.scalar_type() == type || x.scalar_type() == at::kFloat, "{}: expected a residual stream of Float or {}, found {}", weight.name,
        c10::toString(type), c10::toString(x.scalar_type()));
  check(!branch.defined() || (branch.sizes() == x.sizes() && branch.scalar_type() == type),
        "{}: expected a branch of the residual's shape in {}, found {}", weight.name, c10::toString(type),
        branch.defined() ? c10::toString(branch.scalar_type()) : "none");
  const bool recording = records(x, branch, weight.value);
  Forward f;
  {
    at::NoGradGuard no_grad;
    f = forward(x.detach().contiguous(), branch.defined() ? branch.detach().contiguous() : branch, weight.value.detach(), eps,
                want_amax && amax_use().from_producers);
  }
  if (!recording) return {f.sum, {f.y, f.amax}};
  at::Tensor sum = f.sum.detach();
  connect("add_rms_norm", {x, branch, weight.value}, {&sum, &f.y},
          [x_new = f.sum, rstd = f.rstd, &weight, type, has_branch = branch.defined()](const variable_list& g) -> variable_list {
            if (!g[1].defined()) return {g[0], has_branch ? g[0].to(type) : at::Tensor(), at::Tensor()};
            auto [dx, d_branch] = backward(g[0].defined() ? g[0].contiguous() : g[0], g[1].contiguous(), x_new, rstd, weight, has_branch);
            weight.grad_ready();
            return {dx, d_branch, at::Tensor()};
          });
  return {sum, {f.y, f.amax}};
}

}  // namespace halftone
