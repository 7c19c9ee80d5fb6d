#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "halftone/nn/moe.h"
#include "halftone/train/metrics_file.h"

namespace halftone {

// Expert choices of one step's tokens in one layer.
struct ExpertLoad {
  std::string layer;          // "layers.3"
  std::vector<double> share;  // tokens per expert relative to an even spread
  double entropy = 0;         // mean entropy of a token's scores, nats
  double bias = 0;            // largest absolute selection bias
  double dropped = 0;         // choices dropped over capacity (parallelism.expert_parallel_capacity)
};

// The routers of a model: counts their choices, and balances them between steps (nn/moe.h).
class ExpertLoads {
 public:
  ExpertLoads(nn::Module& model, at::Device device, bool force_balance);
  // Call when the step is judged: updates biases if `updated`, a boolean on the device, is true. `add_up` all-reduces its argument over
  // all ranks, `add_stages` over pipeline stages with other layers. Does not synchronize; read() returns the figures once the device is
  // done.
  void settle(const at::Tensor& updated, const std::function<void(at::Tensor&)>& add_up,
              const std::function<void(at::Tensor&)>& add_stages = nullptr);
  void forget();  // for a dropped step
  std::vector<ExpertLoad> read() const;

 private:
  std::vector<nn::MoE*> layers_;
  at::Tensor seen_;  // fp64 [layers, experts + 4] in host memory: load, entropy, tokens, dropped, bias
};

// For metrics.jsonl and the console: the worst over all layers, and each layer's.
Scalars expert_scalars(const std::vector<ExpertLoad>& loads);
// Every expert's share: a separate line in metrics.jsonl.
Scalars expert_shares(const std::vector<ExpertLoad>& loads);

}  // namespace halftone
