#include "halftone/ops/linear.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/linear_cpu.h"
#include "halftone/ops/node.h"

namespace halftone {

int64_t LinearGroup::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(0);
  return n;
}

uint64_t LinearGroup::version() const {
  uint64_t v = 0;
  for (const Weight* w : weights) v += w->version;
  return v;
}

std::string unsupported_reason(const LinearRecipe& recipe, c10::DeviceType) {
  for (const std::string_view name : {"none", "int8", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}) {
    if (recipe.name == name) return name == "fp8_rowwise_with_gw_hp" ? "its tensorwise dgrad weight has no product in this build" : "";
  }
  return fmt::format("this build has products for none, int8 and fp8_rowwise; {} has none", recipe.name);
}

at::Tensor linear(const at::Tensor& x, LinearGroup& group) {
  check(x.dim() == 2 && x.size(1) == group.in_features(), "{}: expected an input of [tokens, {}], found {}", group.weights.front()->name,
        group.in_features(), fmt::join(x.sizes(), " x "));
  const bool cpu = x.is_cpu();
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : group.weights) inputs.push_back(w->value);
  const bool recording =
      at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
  const at::Tensor plain = x.detach();
  if (!cpu) {
    at::Tensor y;
    {
      at::NoGradGuard no_grad;
      y = aten::linear_forward(plain, group);
    }
    if (recording) {
      connect("linear", inputs, {&y}, [plain, &group, want_dx = x.requires_grad()](const variable_list& g) -> variable_list {
        variable_list result(1 + group.weights.size());
        result[0] = aten::linear_backward(plain, g[0].contiguous(), group, want_dx);
        for (Weight* w : group.weights) w->grad_ready();
        return result;
      });
    }
    return y;
  }
  auto call = cpu::linear_forward(plain, group, recording, plain.scalar_type());
  if (recording) {
    connect("linear", inputs, {&call.y},
            [saved = call.saved, &group, want_dx = x.requires_grad()](const variable_list& g) -> variable_list {
              variable_list result(1 + group.weights.size());
              result[0] = cpu::linear_backward(*saved, g[0], group, want_dx);
              for (Weight* w : group.weights) w->grad_ready();
              return result;
            });
  }
  return call.y;
}

}  // namespace halftone
