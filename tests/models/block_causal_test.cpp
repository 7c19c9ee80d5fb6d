// With block_causal attention no document affects another one in its row: loss and gradients of one document do not depend on the other
// documents' tokens, bit for bit. For every family, with windows if it has them, on every device.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "models/small_family.h"
#include "ops/test_device.h"

namespace halftone::block_causal_test {
namespace {

struct Case {
  std::string family;
  bool window;  // shorter than a document, and reaching across its start
  at::ScalarType compute;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.family; }

constexpr int64_t kVocabulary = 96, kLength = 160, kBegin = 37, kEnd = 131;  // document under test: positions in a row

class BlockCausal : public OnDeviceWith<Case> {
 protected:
  void SetUp() override {
    OnDeviceWith::SetUp();
    if (IsSkipped()) return;
    at::globalContext().setDeterministicAlgorithms(true, true);
    ModelConfig config;
    config.name = param().family, config.attn_mask_type = "block_causal";
    config.overrides = {{"dim", int64_t{64}},      {"n_layers", int64_t{2}}, {"n_heads", int64_t{2}},    {"n_kv_heads", int64_t{1}},
                        {"head_dim", int64_t{64}}, {"ffn_dim", int64_t{96}}, {"vocab_size", kVocabulary}};
    config.overrides = small_family(family_of(config), config.overrides);
    if (param().window) config.overrides["window"] = int64_t{48};
    built_ = build_model(config, 0);
    nn::StorageOptions options;
    options.device = test_device(), options.compute = param().compute;
    store_.materialize(*built_.model, options);
    store_.initialize(1);
    built_.model->prepare(test_device(), kLength);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDeviceWith::TearDown();
  }

  // Loss and gradients of the middle document, concatenated.
  at::Tensor of_the_middle(const at::Tensor& tokens, bool divided) {
    at::Tensor start = at::zeros({1, kLength}, at::kInt), labels = at::full({1, kLength}, -100, at::kLong);
    start.narrow(1, kBegin, kEnd - kBegin).fill_(kBegin), start.narrow(1, kEnd, kLength - kEnd).fill_(kEnd);
    labels.narrow(1, kBegin, kEnd - kBegin - 1).copy_(tokens.narrow(1, kBegin + 1, kEnd - kBegin - 1));
    nn::ModelInput input;
    input.tokens = tokens.to(test_device());
    if (divided) input.documents = documents_of(start, test_device());
    store_.gradients_are_stale(false);
    nn::Pass pass(*built_.model, input, labels.to(test_device()), 1.0 / (kEnd - kBegin - 1), true);
    pass.backward();
    std::vector<at::Tensor> all = {pass.loss_sum().cpu().view(1)};
    for (const nn::Parameter* p : store_.parameters())
      if (!p->buffer) all.push_back(p->weight.grad.to(at::kCPU, at::kDouble).flatten());
    return at::cat(all);
  }

  BuiltModel built_;
  nn::ParameterStore store_;
};

TEST_P(BlockCausal, NoDocumentReachesAnother) {
  EXPECT_TRUE(built_.block_causal);
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(kVocabulary, {1, kLength}, at::kLong);
  at::Tensor before = tokens.clone(), around = tokens.clone();
  const auto change = [](at::Tensor t) { t.copy_(at::remainder(t + 1, kVocabulary)); };
  change(before.narrow(1, 0, kBegin)), change(around.narrow(1, 0, kBegin)), change(around.narrow(1, kEnd, kLength - kEnd));
  const at::Tensor expected = of_the_middle(tokens, true);
  EXPECT_TRUE(expected.isfinite().all().item<bool>());
  EXPECT_TRUE(at::equal(of_the_middle(tokens, true), expected)) << "the same pass twice";
  EXPECT_TRUE(at::equal(of_the_middle(around, true), expected));
  EXPECT_FALSE(at::equal(of_the_middle(before, false), of_the_middle(tokens, false))) << "a row that is one document";
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ModelFamily* family : model_families())
    for (const bool window : {false, true}) {
      if (window && (family->decoder == nullptr || family->decoder->windows == DecoderTraits::Windows::none)) continue;
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) all.push_back({std::string(family->name), window, compute});
    }
  return all;
}
std::string case_name(const testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
  const auto& [device, c] = info.param;
  return fmt::format("{}_{}{}_{}", device, c.family, c.window ? "_window" : "", c.compute == at::kFloat ? "fp32" : "bf16");
}
INSTANTIATE_TEST_SUITE_P(Families, BlockCausal, testing::Combine(test_devices(), testing::ValuesIn(cases())), case_name);

}  // namespace
}  // namespace halftone::block_causal_test
