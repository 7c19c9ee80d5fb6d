#include "halftone/train/expert_load.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "halftone/ops/device.h"

namespace halftone {

ExpertLoads::ExpertLoads(nn::Module& model, at::Device device, bool force_balance) {
  model.for_each_module([&](nn::Module& m) {
    auto* moe = dynamic_cast<nn::MoE*>(&m);
    if (moe == nullptr) return;
    layers_.push_back(moe);
    moe->prepare(device);
    if (force_balance) moe->force_balance();
  });
  if (layers_.empty()) return;
  const int64_t experts = layers_.front()->shape().routing.experts;
  seen_ = at::zeros({static_cast<int64_t>(layers_.size()), experts + 4},
                    at::TensorOptions().dtype(at::kDouble).pinned_memory(device.is_cuda()));
}

void ExpertLoads::settle(const at::Tensor& updated, const std::function<void(at::Tensor&)>& add_up,
                         const std::function<void(at::Tensor&)>& add_stages) {
  if (layers_.empty()) return;
  std::vector<at::Tensor> loads, biases;
  for (nn::MoE* m : layers_) loads.push_back(m->load());
  at::Tensor sums = at::stack(loads);
  if (add_up) add_up(sums);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->load().copy_(sums[static_cast<int64_t>(i)]);
    layers_[i]->balance(updated);
    const nn::Parameter* bias = layers_[i]->expert_bias();
    const bool has = bias != nullptr && bias->master.defined();
    biases.push_back(has ? bias->master.abs().max().to(at::kDouble) : at::zeros({}, sums.options()));
  }
  at::Tensor largest = at::stack(biases);
  if (add_stages) add_stages(largest);
  copy_to_host(at::cat({sums, largest.unsqueeze(1)}, 1), seen_);
}

void ExpertLoads::forget() {
  for (nn::MoE* m : layers_) m->load().zero_();
}

std::vector<ExpertLoad> ExpertLoads::read() const {
  std::vector<ExpertLoad> result;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t experts = layers_[i]->shape().routing.experts;
    const double* row = seen_.const_data_ptr<double>() + static_cast<int64_t>(i) * seen_.size(1);
    const double tokens = std::max(row[experts + 1], 1.0);
    const double even = tokens * static_cast<double>(layers_[i]->shape().routing.top_k) / static_cast<double>(experts);
    ExpertLoad l;
    const std::string& name = layers_[i]->fqn();
    l.layer = name.substr(0, name.rfind('.'));
    for (int64_t e = 0; e < experts; ++e) l.share.push_back(row[e] / even);
    l.entropy = row[experts] / tokens, l.dropped = row[experts + 2], l.bias = row[experts + 3];
    result.push_back(std::move(l));
  }
  return result;
}

Scalars expert_scalars(const std::vector<ExpertLoad>& loads) {
  Scalars s;
  if (loads.empty()) return s;
  double most = 0, least = loads.front().share.front(), entropy = 0, bias = 0, dropped = 0;
  for (const ExpertLoad& l : loads) {
    const auto [low, high] = std::minmax_element(l.share.begin(), l.share.end());
    s.emplace_back(fmt::format("moe/{}/max_load", l.layer), *high);
    s.emplace_back(fmt::format("moe/{}/min_load", l.layer), *low);
    most = std::max(most, *high), least = std::min(least, *low), bias = std::max(bias, l.bias), dropped += l.dropped;
    entropy += l.entropy / static_cast<double>(loads.size());
  }
  s.insert(s.begin(), {{"moe/max_load", most},
                       {"moe/min_load", least},
                       {"moe/router_entropy", entropy},
                       {"moe/max_bias", bias},
                       {"moe/dropped_tokens", dropped}});
  return s;
}

Scalars expert_shares(const std::vector<ExpertLoad>& loads) {
  Scalars s;
  for (const ExpertLoad& l : loads) {
    s.emplace_back(fmt::format("moe/{}/router_entropy", l.layer), l.entropy);
    s.emplace_back(fmt::format("moe/{}/max_bias", l.layer), l.bias);
    for (size_t e = 0; e < l.share.size(); ++e) s.emplace_back(fmt::format("moe/{}/load/{}", l.layer, e), l.share[e]);
  }
  return s;
}

}  // namespace halftone
