#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "halftone/checkpoint/store.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "halftone/train/hf_model.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(source_dir()) / "tests/golden";

double relative(const at::Tensor& reference, const at::Tensor& x) {
  return ((reference.to(at::kDouble) - x.to(at::kDouble)).norm() / reference.to(at::kDouble).norm()).item<double>();
}

at::Tensor read(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype));
  read_tensor(file, entry, out, false);
  return out;
}

// Loss and every gradient equal those of Hugging Face transformers' LlamaForCausalLM in fp32, from the same file.
void compare_with_transformers(const std::string& name, const nn::RecomputePlan& recompute) {
  const LoadedStep weights = LoadedStep::open(kGolden / name, false);
  ASSERT_NE(weights.hf_config(), nullptr);
  const ModelDescription& hf = *weights.hf_config()->model;
  ModelConfig config;
  config.overrides = hf.hyper_parameters();
  BuiltModel built = build_model(config, 0);
  check_matches_hf(*built.description, hf, name);
  nn::ParameterStore store;
  store.materialize(*built.model, {at::kCPU, at::kFloat, at::kFloat, true});
  for (nn::Parameter* p : store.parameters()) weights.read_into(p->fqn, p->master);
  store.masters_changed();
  built.model->prepare(at::kCPU, 64);
  built.model->set_recompute(recompute);

  const SafetensorsFile golden(kGolden / name / "golden.safetensors");
  const at::Tensor ids = read(golden, "input_ids"), labels = read(golden, "labels");
  const auto valid = labels.ne(-100).sum().item<int64_t>();
  ASSERT_LT(valid, labels.numel());
  nn::Pass pass(*built.model, {ids, {}, {}, {}, {}}, labels, 1.0 / static_cast<double>(valid), true);
  pass.backward();
  EXPECT_LT(relative(read(golden, "loss"), pass.loss_sum() / valid), 1e-5);
  for (nn::Parameter* p : store.parameters()) {
    const std::string hf_name = hf.family().hf_name(p->fqn).value();
    const NamedTensor expected = hf_to_native({hf_name, read(golden, "grad." + hf_name)}, hf);
    EXPECT_EQ(expected.name, p->fqn);
    EXPECT_LT(relative(expected.tensor, p->weight.grad), 1e-5) << p->fqn;
  }
}

TEST(LlamaGolden, UntiedEqualsTransformers) { compare_with_transformers("llama_untied", {}); }
TEST(LlamaGolden, TiedWithRopeScalingEqualsTransformers) { compare_with_transformers("llama_tied", {}); }
TEST(LlamaGolden, RecomputedBlocksGiveTheSameGradients) {
  compare_with_transformers("llama_untied", nn::RecomputePlan(4, nn::Recompute::full));
  compare_with_transformers("llama_tied", {nn::Recompute::none, nn::Recompute::full});
}

}  // namespace
}  // namespace halftone
