#pragma once
#include <ATen/Functions.h>

#include <filesystem>
#include <string>
#include <vector>

#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "halftone/nn/recipe_config.h"
#include "source_dir.h"

namespace halftone {

struct Pass {
  double loss = 0;
  at::Tensor gradients;  // of every parameter, concatenated, fp64 on the CPU
  int64_t layers = 0;
};

// The demo model, freshly initialised, and a micro-batch of random tokens for it. `arguments`: command-line options.
struct DemoModel {
  static constexpr int64_t kRows = 2, kLength = 96;
  JobConfig config;
  BuiltModel built;
  nn::ParameterStore store;
  c10::Device device;

  DemoModel(const std::vector<std::string>& arguments, c10::Device device) : device(device) {
    std::vector<std::string> args = {"--config", (std::filesystem::path(source_dir()) / "recipes" / "demo.toml").string()};
    args.insert(args.end(), arguments.begin(), arguments.end());
    config = load_config(args, {1}).config;
    built = build_model(config.model, 256);
    nn::apply_recipes(*built.model, nn::recipe_rules(config.quantize, config.model, layers()), layers(), device.type());
    nn::StorageOptions options;
    options.device = device;
    store.materialize(*built.model, options);
    built.model->prepare(device, kLength);
    store.initialize(1);
    // memory_budget: every mode next to every other.
    constexpr nn::Recompute kMixed[] = {nn::Recompute::full, nn::Recompute::op, nn::Recompute::none, nn::Recompute::op,
                                        nn::Recompute::full};
    nn::RecomputePlan plan;
    for (int64_t i = 0; i < layers(); ++i) {
      const std::string& mode = config.activation_checkpoint.mode;
      plan.push_back(mode == "none"        ? nn::Recompute::none
                     : mode == "full"      ? nn::Recompute::full
                     : mode == "selective" ? nn::Recompute::op
                                           : kMixed[i % 5]);
    }
    built.model->set_recompute(plan);
  }
  int64_t layers() const { return built.model->size().layers; }
  // The `number`th micro-batch of step 1, at its position among the step's rows.
  nn::Pass pass(uint64_t number = 0, bool keep = true, nn::PassPart part = {}) {
    at::manual_seed(2 + number);
    const at::Tensor tokens = at::randint(256, {kRows, kLength + 1}, at::kLong).to(device);
    nn::ModelInput input;
    input.step = {1, 1, static_cast<int64_t>(number) * kRows * kLength};
    input.tokens = tokens.narrow(1, 0, kLength).contiguous();
    return nn::Pass(*built.model, input, tokens.narrow(1, 1, kLength).contiguous(), 1.0 / (kRows * kLength), keep, nullptr,
                    std::move(part));
  }
  at::Tensor gradients() {
    std::vector<at::Tensor> all;
    for (const nn::Parameter* p : store.parameters())
      if (!p->buffer) all.push_back(p->weight.grad.to(at::kDouble).cpu().flatten());
    return at::cat(all);
  }
};

// Loss and gradients of one micro-batch.
inline Pass model_pass(const std::vector<std::string>& quantize, c10::Device device) {
  DemoModel demo(quantize, device);
  nn::Pass pass = demo.pass();
  pass.backward();
  return {pass.loss_sum().item<double>() / (DemoModel::kRows * DemoModel::kLength), demo.gradients(), demo.layers()};
}

}  // namespace halftone
