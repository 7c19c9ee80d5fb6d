// Every model of tests/golden (make_hf_golden.py) matches Hugging Face transformers on the same file: loss, logits, every gradient,
// greedy generation; and an imported folder is exported unchanged.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/support.h"
#include "halftone/checkpoint/store.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "halftone/train/hf_model.h"
#include "invariant.h"
#include "ops/test_device.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

fs::path golden_folder(const std::string& name) { return fs::path(source_dir()) / "tests/golden" / name; }

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  std::error_code absent;  // fails in a test, not before main
  for (const auto& entry : fs::directory_iterator(golden_folder(""), absent))
    if (fs::exists(entry.path() / "golden.safetensors")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

double relative(const at::Tensor& reference, const at::Tensor& x) {
  const at::Tensor r = reference.to(at::kDouble);
  const double size = r.norm().item<double>();  // 0: the router of a single expert
  return (r - x.to(at::kCPU, at::kDouble)).norm().item<double>() / (size > 0 ? size : 1);
}

at::Tensor read(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype));
  read_tensor(file, entry, out, false);
  return out;
}

// The model of a folder in fp32 on the running test's device, with tables for rows of `positions` tokens.
struct Loaded {
  LoadedStep weights;
  const ModelDescription& hf;
  BuiltModel built;
  nn::ParameterStore store;

  Loaded(const std::string& name, int64_t positions)
      : weights(LoadedStep::open(golden_folder(name), false)), hf(*weights.hf_config()->model), built(build(hf)) {
    check_matches_hf(*built.description, hf, name);
    nn::StorageOptions storage;
    storage.device = test_device(), storage.compute = at::kFloat;
    store.materialize(*built.model, storage);
    for (nn::Parameter* p : store.parameters()) weights.read_into(p->fqn, p->master, true);
    store.masters_changed();
    built.model->prepare(test_device(), positions);
  }
  static BuiltModel build(const ModelDescription& hf) {
    ModelConfig config;
    config.name = hf.family().name, config.overrides = hf.hyper_parameters();
    return build_model(config, 0);
  }
};

class HfGolden : public OnDeviceWith<std::string> {
 protected:
  void SetUp() override {
    OnDeviceWith::SetUp();
    at::set_num_threads(1);  // fastest here
  }
  void TearDown() override {
    at::set_num_threads(threads_);
    OnDeviceWith::TearDown();
  }
  at::Tensor golden(const std::string& tensor) const {
    return read(SafetensorsFile(golden_folder(param()) / "golden.safetensors"), tensor);
  }
  const int threads_ = at::get_num_threads();
  // A GPU's GEMMs sum in another order.
  double bar() const { return test_device().is_cpu() ? 1e-5 : 5e-5; }

  void compare(nn::Recompute recompute) const {
    const at::Tensor ids = golden("input_ids"), labels = golden("labels");
    Loaded loaded(param(), ids.size(1));
    loaded.built.model->set_recompute(nn::RecomputePlan(4, recompute));
    const auto valid = labels.ne(-100).sum().item<int64_t>();
    ASSERT_LT(valid, labels.numel());
    nn::ModelInput input;
    input.tokens = ids.to(test_device());
    nn::Pass pass(*loaded.built.model, input, labels.to(test_device()), 1.0 / static_cast<double>(valid), true);
    pass.backward();
    EXPECT_LT(relative(golden("loss"), pass.loss_sum() / valid), bar());
    std::set<std::string> names;
    for (nn::Parameter* p : loaded.store.parameters()) {
      if (p->buffer) continue;
      const NamedTensor expected = hf_to_native(p->fqn, loaded.hf, [&](const std::string& name) {
        names.insert("grad." + name);
        return golden("grad." + name);
      });
      EXPECT_LT(relative(expected.tensor, p->weight.grad), bar()) << p->fqn;
    }
    const SafetensorsFile file(golden_folder(param()) / "golden.safetensors");
    for (const TensorEntry& entry : file.header().tensors)
      EXPECT_TRUE(!entry.name.starts_with("grad.") || names.contains(entry.name)) << entry.name << " belongs to no parameter";
  }
};

TEST_P(HfGolden, LossAndGradientsEqualTransformers) { compare(nn::Recompute::none); }
TEST_P(HfGolden, RecomputedBlocksGiveTheSameGradients) {
  for (const nn::Recompute recompute : {nn::Recompute::full, nn::Recompute::op}) compare(recompute);
}

// Both rows at once, a prompt of three tokens and then one token at a time: every position's logits through the KV cache. Dynamic RoPE
// matches the row's length only at its last position.
TEST_P(HfGolden, LogitsOfEveryPositionEqualTransformers) {
  const at::Tensor ids = golden("input_ids").to(test_device()), expected = golden("logits");
  const int64_t rows = ids.size(0), length = ids.size(1), prompt = param() == "llama_dynamic" ? length : 3;
  Loaded loaded(param(), length);
  std::vector<KvCache> caches = loaded.built.model->make_caches(rows, length);
  for (int64_t last = prompt - 1, first = 0; last < length; first = ++last) {
    const at::Tensor logits = loaded.built.model->next_token_logits(ids.narrow(1, first, last + 1 - first).contiguous(), caches);
    EXPECT_LT(relative(expected.select(1, last), logits), bar()) << "position " << last;
  }
}

// debug.batch_invariant: a row packed between two other documents in a training pass, and chunks of it through the KV cache, give the
// same bits, with windows, sinks, latent attention, biases and experts of every routing.
TEST_P(HfGolden, BatchInvariantBits) {
  if (test_device().is_cuda()) GTEST_SKIP() << "attention on a GPU is not batch-invariant in float32";
  const BatchInvariantScope invariant;
  const at::Tensor ids = golden("input_ids");
  const int64_t length = ids.size(1), before = 3, places = length + 8;
  Loaded loaded(param(), places);
  nn::Model& model = *loaded.built.model;
  std::vector<KvCache> caches = model.make_caches(1, places);
  if (param() == "llama_dynamic") {
    EXPECT_THROW(model.next_token_logits(ids.narrow(0, 0, 1), caches), Error);
    return;
  }
  nn::ModelInput input;
  input.tokens = ids[0].repeat({2, places / length + 1}).narrow(1, 0, places).contiguous();
  input.tokens[1].narrow(0, before, length).copy_(ids[1]);
  at::Tensor start = at::zeros({2, places}, at::kInt);
  start[1].narrow(0, before, length).fill_(before), start[1].narrow(0, before + length, places - before - length).fill_(before + length);
  input.positions = at::arange(places, at::kInt).repeat({2, 1}) - start, input.documents = documents_of(start, at::kCPU);
  const nn::SequenceInfo info = model.sequence_info(input);
  nn::Stream s = model.embed(input.tokens, info);
  for (int64_t i = 0; i < model.blocks(); ++i) s = model.block(i, s, info);
  const at::Tensor expected = model.logits({s.x.detach(), s.branch.detach()}, info).narrow(0, places + before, length);
  for (const int64_t chunk : {int64_t{1}, int64_t{3}, length}) {
    for (KvCache& c : caches) c.length = 0;
    for (int64_t at = 0; at < length; at += chunk) {
      const int64_t n = std::min(chunk, length - at);
      const at::Tensor found = model.next_token_logits(ids.narrow(0, 1, 1).narrow(1, at, n).contiguous(), caches);
      EXPECT_TRUE(same_bits(expected.narrow(0, at + n - 1, 1), found)) << "position " << at + n - 1 << ", chunks of " << chunk;
    }
  }
}

TEST_P(HfGolden, GreedyTokensEqualTransformers) {
  const at::Tensor prompt = golden("prompt"), expected = golden("greedy");
  Loaded loaded(param(), prompt.numel() + expected.numel());
  std::vector<KvCache> caches = loaded.built.model->make_caches(1, prompt.numel() + expected.numel());
  std::vector<int64_t> tokens;
  at::Tensor next = prompt.to(test_device()).unsqueeze(0);
  for (int64_t i = 0; i < expected.numel(); ++i) {
    next = loaded.built.model->next_token_logits(next, caches).argmax(1, true);
    tokens.push_back(next.item<int64_t>());
  }
  EXPECT_EQ(tokens, std::vector<int64_t>(expected.const_data_ptr<int64_t>(), expected.const_data_ptr<int64_t>() + expected.numel()));
}

INSTANTIATE_TEST_SUITE_P(All, HfGolden, ::testing::Combine(test_devices(), ::testing::ValuesIn(golden_names())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

class HfGoldenFolder : public ::testing::TestWithParam<std::string> {};

// Names, types and bits of every tensor, and the entries of config.json that describe the model.
TEST_P(HfGoldenFolder, IsWrittenBackAsItWas) {
  const testing::TemporaryFolder folder;
  const LoadedStep loaded = LoadedStep::open(golden_folder(GetParam()), true);
  const HfConfig& config = *loaded.hf_config();
  std::vector<NamedTensor> model;
  for (const std::string& name : loaded.model_names()) model.push_back({name, loaded.read(name)});
  const SafetensorsFile file(golden_folder(GetParam()) / "model.safetensors");
  write_hf(folder.path(), {.config = config, .model = model, .dtype = scalar_type_of(file.header().tensors.front().dtype)});
  const SafetensorsFile written(folder / "model.safetensors");
  std::vector<std::string> expected_names, names;
  for (const TensorEntry& entry : file.header().tensors) expected_names.push_back(entry.name);
  for (const TensorEntry& entry : written.header().tensors) names.push_back(entry.name);
  std::sort(expected_names.begin(), expected_names.end()), std::sort(names.begin(), names.end());
  ASSERT_EQ(names, expected_names);
  for (const std::string& name : names) {
    EXPECT_EQ(written.at(name).dtype, file.at(name).dtype) << name;
    EXPECT_TRUE(at::equal(read(written, name), read(file, name))) << name;
  }
  const LoadedStep again = LoadedStep::open(folder.path(), true);
  EXPECT_EQ(&again.hf_config()->model->family(), &config.model->family());
  EXPECT_EQ(again.hf_config()->model->hf_parameters(), config.model->hf_parameters());
  EXPECT_EQ(again.hf_config()->torch_dtype, config.torch_dtype);
  EXPECT_EQ(again.hf_config()->token_ids, config.token_ids);
}
INSTANTIATE_TEST_SUITE_P(All, HfGoldenFolder, ::testing::ValuesIn(golden_names()), [](const auto& info) { return info.param; });

TEST(HfGoldenFolders, EveryFamilyHasOne) {
  std::set<std::string_view> found;
  for (const std::string& name : golden_names())
    found.insert(LoadedStep::open(golden_folder(name), false).hf_config()->model->family().name);
  for (const ModelFamily* family : model_families()) EXPECT_TRUE(found.contains(family->name)) << family->name;
}

}  // namespace
}  // namespace halftone
