#include "halftone/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "halftone/fused/swiglu.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/node.h"

namespace halftone {
namespace {

const char* halves(const at::Tensor& gu) { return static_cast<const char*>(gu.const_data_ptr()) + gu.size(1) / 2 * gu.element_size(); }

at::Tensor maxima(const at::Tensor& of, int64_t count) { return at::empty({count}, of.options().dtype(at::kInt)); }

Activation forward(const at::Tensor& gu, bool want_amax) {
  const int64_t f = gu.size(1) / 2;
  at::Tensor h = at::empty({gu.size(0), f}, gu.options());
  SwigluForward p;
  p.rows = gu.size(0), p.cols = f, p.dtype = kernel_dtype(gu);
  p.g = gu.const_data_ptr(), p.u = halves(gu), p.g_stride = p.u_stride = gu.stride(0);
  p.h = h.data_ptr(), p.h_stride = f;
  at::Tensor amax;
  if (want_amax) {
    amax = maxima(gu, 1);
    p.amax = static_cast<uint32_t*>(amax.mutable_data_ptr());
  }
  if (gu.is_cpu()) {
    swiglu_forward(p);
  } else {
    cuda::launch("swiglu", &cuda::Module::swiglu_forward, p, gu.device());
  }
  return {h, amax};
}

at::Tensor backward(const at::Tensor& dh, const at::Tensor& gu, GradientAmax* gradients) {
  at::Tensor dgu = at::empty_like(gu);
  SwigluBackward p;
  p.rows = gu.size(0), p.cols = gu.size(1) / 2, p.dtype = kernel_dtype(gu);
  p.g = gu.const_data_ptr(), p.u = halves(gu), p.g_stride = p.u_stride = gu.stride(0);
  p.dh = dh.const_data_ptr(), p.dh_stride = dh.stride(0);
  p.dg = dgu.data_ptr(), p.du = const_cast<char*>(halves(dgu)), p.dg_stride = p.du_stride = dgu.stride(0);
  if (gradients != nullptr && amax_use().from_producers) {
    const at::Tensor amax = maxima(gu, 2);
    p.amax = static_cast<uint32_t*>(amax.mutable_data_ptr());
    gradients->put(dgu, amax);
  }
  if (gu.is_cpu()) {
    swiglu_backward(p);
  } else {
    cuda::launch("swiglu", &cuda::Module::swiglu_backward, p, gu.device());
  }
  return dgu;
}

}  // namespace

Activation swiglu(const at::Tensor& gu, bool want_amax, std::shared_ptr<GradientAmax> gradients) {
  check(gu.dim() == 2 && gu.size(1) % 2 == 0, "swiglu: expected [tokens, 2 * width], found {}", fmt::join(gu.sizes(), " x "));
  const at::Tensor plain = gu.detach().contiguous();
  Activation h;
  {
    at::NoGradGuard no_grad;
    h = forward(plain, want_amax && amax_use().from_producers);
  }
  if (records(gu)) {
    connect("swiglu", {gu}, {&h.value}, [plain, gradients = std::move(gradients)](const variable_list& g) -> variable_list {
      return {backward(g[0].contiguous(), plain, gradients.get())};
    });
  }
  return h;
}

}  // namespace halftone
