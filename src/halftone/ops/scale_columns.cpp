#include "halftone/ops/scale_columns.h"

#include <ATen/TensorOperators.h>

#include "halftone/ops/common.h"
#include "halftone/ops/node.h"

namespace halftone {

at::Tensor scale_columns(const at::Tensor& x, Weight& scale) {
  const bool recording = records(x, scale.value);
  const at::Tensor plain = x.detach(), s = scale.value.detach().to(at::kFloat);
  at::Tensor y;
  {
    at::NoGradGuard no_grad;
    y = (plain.to(at::kFloat) * s).to(x.scalar_type());
  }
  if (!recording) return y;
  connect("scale_columns", {x, scale.value}, {&y}, [plain, s, &scale](const variable_list& g) -> variable_list {
    const at::Tensor dy = g[0].to(at::kFloat);
    if (scale.trainable()) {
      scale.grad.add_((dy * plain.to(at::kFloat)).sum(0));
      scale.grad_ready();
    }
    return {(dy * s).to(plain.scalar_type()), at::Tensor()};
  });
  return y;
}

}  // namespace halftone
