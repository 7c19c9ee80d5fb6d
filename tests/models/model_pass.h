#pragma once
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "halftone/config/load.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/recipe_config.h"
#include "halftone/ops/head_loss.h"
#include "source_dir.h"

namespace halftone {

struct Pass {
  double loss = 0;
  at::Tensor gradients;  // of every parameter behind one another, fp64 on the processor
  int64_t layers = 0;
};

// Loss and gradients of the demo model, freshly initialised, on random tokens. `quantize`: command-line arguments.
inline Pass model_pass(std::vector<std::string> quantize, c10::Device device) {
  constexpr int64_t kRows = 2, kLength = 96;
  std::vector<std::string> args = {"--config", (std::filesystem::path(source_dir()) / "recipes" / "demo.toml").string()};
  args.insert(args.end(), quantize.begin(), quantize.end());
  const JobConfig config = load_config(args, {1}).config;
  BuiltModel built = build_model(config.model, 256);
  const int64_t layers = built.model->size().layers;
  nn::apply_recipes(*built.model, nn::recipe_plan(config.quantize, config.model, layers), layers, device.type());
  nn::ParameterStore store;
  nn::StorageOptions options;
  options.device = device;
  store.materialize(*built.model, options);
  built.model->prepare(device, kLength);
  store.initialize(1);
  if (config.activation_checkpoint.mode == "full") built.model->set_recompute({nn::Recompute::full, 1});
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(256, {kRows, kLength + 1}, at::kLong).to(device);
  nn::ModelInput input;
  input.step = {1, 1, 0};
  input.tokens = tokens.narrow(1, 0, kLength).contiguous();
  at::AutoGradMode grad(true);
  const HeadLoss out = built.model->loss(input, tokens.narrow(1, 1, kLength).contiguous(), 1.0 / (kRows * kLength));
  torch::autograd::backward({out.loss}, {});
  std::vector<at::Tensor> gradients;
  for (const nn::Parameter* p : store.parameters()) gradients.push_back(p->weight.grad.to(at::kDouble).cpu().flatten());
  return {out.sum.item<double>() / (kRows * kLength), at::cat(gradients), layers};
}

}  // namespace halftone
