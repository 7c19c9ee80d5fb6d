#include "halftone/ops/linear.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/linear_cpu.h"
#include "halftone/ops/linear_scaled.h"
#include "halftone/ops/node.h"
#include "halftone/ops/quantization_stats.h"

namespace halftone {

int64_t LinearGroup::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(0);
  return n;
}

WeightState LinearGroup::weight_state(const StepContext& step) const {
  WeightState state;
  for (const Weight* w : weights) state.version += w->version;
  if (recipe.w_forward.stochastic || recipe.w_dgrad.stochastic) state.step = step.step;
  return state;
}

bool LinearGroup::has_bias() const {
  return std::any_of(biases.begin(), biases.end(), [](const Weight* b) { return b != nullptr; });
}

void LinearGroup::gradients_ready() {
  for (const auto* parameters : {&weights, &biases}) {
    for (Weight* w : *parameters) {
      if (w != nullptr) w->grad_ready();
    }
  }
}

LinearCall linear_call(const at::Tensor& x, LinearGroup& group, const LinearOptions& asked) {
  const auto& stats = quantization_stats();
  LinearOptions options = asked;
  if (stats) options.x_again = nullptr;  // they read X and dX
  LinearCall call = x.is_cpu() && cpu::takes(x, group) ? cpu::linear_call(x, group, options) : scaled::linear_call(x, group, options);
  return stats ? stats->watch(x, group, options, std::move(call)) : call;
}

at::Tensor linear(const Activation& input, LinearGroup& group, const StepContext& step) {
  const at::Tensor& x = input.value;
  check(x.dim() >= 1 && x.size(-1) == group.in_features(), "{}: expected an input of [tokens, {}], found {}", group.weights.front()->name,
        group.in_features(), fmt::join(x.sizes(), " x "));
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : group.weights) inputs.push_back(w->value);
  LinearOptions options;
  options.step = step, options.keep = records(inputs);
  options.out = x.scalar_type(), options.x_amax = input.amax;
  const int64_t n = group.out_features();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  LinearCall call;
  {
    at::NoGradGuard no_grad;
    const at::Tensor plain = x.detach();
    call = linear_call(plain.dim() == 2 ? plain : plain.reshape({-1, plain.size(-1)}), group, options);
    if (x.dim() != 2) call.y = call.y.view(shape).detach();
  }
  if (options.keep) {
    connect("linear", inputs, {&call.y},
            [backward = std::move(call.backward), &group, n, want_dx = x.requires_grad(),
             sizes = x.sizes().vec()](const variable_list& g) -> variable_list {
              variable_list result(1 + group.weights.size());
              Activation dy = group.dy_amax ? group.dy_amax->take(g[0]) : Activation(g[0]);
              if (g[0].dim() != 2) dy.value = g[0].reshape({-1, n});
              result[0] = backward(dy, want_dx);
              if (want_dx && sizes.size() != 2) result[0] = result[0].view(sizes);
              group.gradients_ready();
              return result;
            });
  }
  return call.y;
}

}  // namespace halftone
