#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "halftone/nn/moe.h"
#include "halftone/train/metrics_file.h"

namespace halftone {

// What the tokens of one step chose in one layer.
struct ExpertLoad {
  std::string layer;          // "layers.3"
  std::vector<double> share;  // of every expert's tokens in what an even spread gives it
  double entropy = 0;         // of the scores of a token, nats, mean
  double bias = 0;            // largest magnitude of the bias for the choice
  double dropped = 0;         // choices that found no room on their way (parallelism.expert_parallel_capacity)
};

// The routers of a model: counts what they choose, and balances them between steps (nn/moe.h).
class ExpertLoads {
 public:
  ExpertLoads(nn::Module& model, at::Device device, bool force_balance);
  // When the step is judged: biases move where `updated`, a boolean on the device, is true. `add_up` makes a sum over all processes of what
  // it is given. Waits for nothing; read() gives the figures once the device is done.
  // `add_stages`: over those that have other layers.
  void settle(const at::Tensor& updated, const std::function<void(at::Tensor&)>& add_up,
              const std::function<void(at::Tensor&)>& add_stages = nullptr);
  void forget();  // of a step that is dropped
  std::vector<ExpertLoad> read() const;

 private:
  std::vector<nn::MoE*> layers_;
  at::Tensor seen_;  // fp64 [layers, experts + 4] in host memory: load, entropy, tokens, dropped, bias
};

// metrics.jsonl and the console: the worst of all layers, and those of every layer.
Scalars expert_scalars(const std::vector<ExpertLoad>& loads);
// Every expert's share: a line of its own in metrics.jsonl.
Scalars expert_shares(const std::vector<ExpertLoad>& loads);

}  // namespace halftone
