#pragma once
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <tuple>

// The ops' formulas in portable tensor operations, the reference in their tests: fp32 inside, one rounding to the activation dtype.
namespace halftone::portable {

inline std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  const at::Tensor xf = x.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(xf.square().mean(1, true) + eps);
  return {(xf * rstd * w.to(at::kFloat)).to(w.scalar_type()), rstd.squeeze(1)};
}

inline std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                                            const at::Tensor& w) {
  const at::Tensor r = rstd.unsqueeze(1), x_hat = x.to(at::kFloat) * r, dyf = dy.to(at::kFloat);
  const at::Tensor g = dyf * w.to(at::kFloat);
  return {(r * (g - x_hat * (g * x_hat).mean(1, true))).to(x.scalar_type()), (dyf * x_hat).sum(0)};
}

inline at::Tensor swiglu(const at::Tensor& gu) {
  const int64_t f = gu.size(1) / 2;
  const at::Tensor g = gu.narrow(1, 0, f).to(at::kFloat), u = gu.narrow(1, f, f).to(at::kFloat);
  return (g * at::sigmoid(g) * u).to(gu.scalar_type());
}

inline at::Tensor swiglu_backward(const at::Tensor& dh, const at::Tensor& gu) {
  const int64_t f = gu.size(1) / 2;
  const at::Tensor g = gu.narrow(1, 0, f).to(at::kFloat), u = gu.narrow(1, f, f).to(at::kFloat), d = dh.to(at::kFloat);
  const at::Tensor s = at::sigmoid(g);
  return at::cat({d * u * s * (1 + g * (1 - s)), d * g * s}, 1).to(gu.scalar_type());
}

}  // namespace halftone::portable
