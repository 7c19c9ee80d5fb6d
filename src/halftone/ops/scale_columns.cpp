#include "halftone/ops/scale_columns.h"

#include <ATen/TensorOperators.h>

#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"

namespace halftone {

at::Tensor scaled_columns(const at::Tensor& x, const Weight& scale) {
  return (x.to(at::kFloat) * scale.value.detach().to(at::kFloat)).to(x.scalar_type());
}

at::Tensor scaled_columns_backward(const at::Tensor& gradient, const at::Tensor& x, Weight& scale) {
  const at::Tensor dy = gradient.to(at::kFloat);
  if (scale.trainable()) scale.grad_to_add().add_((dy * x.to(at::kFloat)).sum(0));
  return (dy * scale.value.detach().to(at::kFloat)).to(x.scalar_type());
}

at::Tensor scale_columns(const at::Tensor& x, Weight& scale) {
  const at::Tensor plain = x.detach();
  at::Tensor y;
  {
    at::NoGradGuard no_grad;
    y = scaled_columns(plain, scale);
  }
  if (!records(x, scale.value)) return y;
  connect("scale_columns", {x, scale.value}, {&y}, [plain, &scale](const variable_list& g) -> variable_list {
    const at::Tensor dx = scaled_columns_backward(g[0], plain, scale);
    scale.grad_ready();
    return {dx, at::Tensor()};
  });
  return y;
}

}  // namespace halftone
