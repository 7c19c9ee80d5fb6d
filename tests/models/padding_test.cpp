// Places of padding change nothing: loss, gradients, loads of experts and largest magnitudes of scales are those of the same documents
// without padding. For every family, on every device.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "halftone/models/decoder.h"
#include "halftone/models/registry.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "halftone/nn/recipe_config.h"
#include "models/small_family.h"
#include "ops/test_device.h"

namespace halftone::padding_test {
namespace {

struct Case {
  std::string name, family;
  std::string scheme = "none";
  OptionTable overrides{};
  bool documents = false;  // two in a row
  nn::Recompute recompute = nn::Recompute::none;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr int64_t kVocabulary = 96, kDocuments = 6, kLength = 24, kRow = 64, kRows = 8;

// Documents of kLength tokens in rows; where `padded`, the rest of each row is padding, and rows behind the last document are.
struct Rows {
  nn::ModelInput input;
  at::Tensor labels;
  Rows(const at::Tensor& documents, int64_t in_row, bool padded, bool apart) {
    const int64_t full = kDocuments / in_row, rows = padded ? kRows : full, places = padded ? kRow : in_row * kLength;
    at::Tensor tokens = at::zeros({rows, places}, at::kLong), padding = at::ones({rows, places}, at::kBool);
    labels = at::full({rows, places}, -100, at::kLong);
    const auto put = [&](const at::Tensor& to, const at::Tensor& from) {
      to.narrow(0, 0, full).narrow(1, 0, in_row * kLength).copy_(from.reshape({full, in_row * kLength}));
    };
    put(tokens, documents.narrow(1, 0, kLength)), put(labels, documents.narrow(1, 1, kLength));
    padding.narrow(0, 0, full).narrow(1, 0, in_row * kLength).fill_(false);
    labels.select(1, 0).fill_(-100);  // a token without a label is not padding
    input.tokens = tokens.to(test_device()), labels = labels.to(test_device());
    if (padded) input.padding = padding.to(test_device());
    if (!apart) return;
    const at::Tensor start = at::arange(places, at::kInt).floor_divide(kLength).mul_(kLength).clamp_max(in_row * kLength);
    input.documents = documents_of(start.unsqueeze(0).expand({rows, places}).contiguous(), test_device());
  }
};

struct Seen {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  std::vector<at::Tensor> loads;
};

class Padding : public OnDeviceWith<Case> {
 protected:
  void SetUp() override {
    OnDeviceWith::SetUp();
    if (IsSkipped()) return;
    ModelConfig config;
    config.name = param().family, config.attn_mask_type = param().documents ? "block_causal" : "causal";
    config.overrides = {{"dim", int64_t{64}},      {"n_layers", int64_t{2}}, {"n_heads", int64_t{2}},    {"n_kv_heads", int64_t{1}},
                        {"head_dim", int64_t{64}}, {"ffn_dim", int64_t{96}}, {"vocab_size", kVocabulary}};
    config.overrides = small_family(family_of(config), config.overrides);
    for (const auto& [name, value] : param().overrides) config.overrides[name] = value;
    QuantizeConfig quantize;
    quantize.scheme.name = param().scheme, quantize.targets = {"Linear", "GroupedExperts"};
    built_ = build_model(config, 0);
    const int64_t layers = built_.model->size().layers;
    nn::apply_recipes(*built_.model, nn::recipe_rules(quantize, config, layers), layers, test_device().type());
    built_.model->set_recompute(nn::RecomputePlan(static_cast<size_t>(layers), param().recompute));
    nn::StorageOptions options;
    options.device = test_device();
    options.compute = test_device().is_cpu() || param().scheme == "none" ? at::kFloat : at::kBFloat16;
    store_.materialize(*built_.model, options);
    store_.initialize(1);
    at::manual_seed(5);
    for (nn::Parameter* p : store_.parameters()) {
      if (p->name == "bias" && p->fqn.find("router") == std::string::npos) p->master.normal_(0, 0.3);
      // Padding is token 0: behind the norms it would have the largest of all numbers.
      if (p->fqn == "tok_embeddings.weight" && !tied()) p->master.select(0, 0).zero_().narrow(0, 3, 1).fill_(300);
    }
    store_.masters_changed();
    built_.model->prepare(test_device(), kRow);
    built_.model->for_each_module([&](nn::Module& m) {
      if (auto* moe = dynamic_cast<nn::MoE*>(&m)) moe->prepare(test_device()), experts_.push_back(moe);
    });
  }

  bool tied() const { return built_.model->size().tied; }

  Seen see(const Rows& rows) {
    store_.gradients_are_stale(false);
    for (nn::MoE* moe : experts_) moe->load().zero_();
    nn::Pass pass(*built_.model, rows.input, rows.labels, 1.0 / (kDocuments * kLength), true);
    pass.backward();
    Seen s;
    s.loss = pass.loss_sum().item<double>();
    for (const nn::Parameter* p : store_.parameters())
      if (!p->buffer) s.gradients[p->fqn] = p->weight.grad.to(at::kCPU, at::kDouble);
    for (nn::MoE* moe : experts_) s.loads.push_back(moe->load().cpu());
    return s;
  }

  BuiltModel built_;
  nn::ParameterStore store_;
  std::vector<nn::MoE*> experts_;
};

TEST_P(Padding, ChangesNothing) {
  at::manual_seed(3);
  const at::Tensor documents = at::randint(1, kVocabulary, {kDocuments, kLength + 1}, at::kLong);
  const int64_t in_row = param().documents ? 2 : 1;
  const Seen expected = see(Rows(documents, in_row, false, param().documents)),
             found = see(Rows(documents, in_row, true, param().documents));
  // Sums over rows of other lengths come in another order. In bf16 that moves roundings, which move codes and a choice of a router now and
  // then; on the processor, in fp32, it moves a code.
  const bool cpu = test_device().is_cpu(), exact = param().scheme == "none";
  EXPECT_NEAR(found.loss / expected.loss, 1, exact ? 1e-6 : cpu ? 1e-5 : 1e-3);
  ASSERT_EQ(found.loads.size(), expected.loads.size());
  for (size_t i = 0; i < found.loads.size(); ++i) {
    const at::Tensor &f = found.loads[i], &e = expected.loads[i];
    const int64_t experts = f.numel() - 3;
    EXPECT_EQ(e[experts + 1].item<double>(), static_cast<double>(kDocuments * kLength));
    EXPECT_EQ(f[experts + 1].item<double>(), e[experts + 1].item<double>());
    EXPECT_NEAR(f[experts].item<double>(), e[experts].item<double>(), (exact ? 1e-5 : 1e-2) * e[experts].item<double>());
    EXPECT_TRUE(!exact || at::equal(f.narrow(0, 0, experts), e.narrow(0, 0, experts))) << f << e;
    EXPECT_EQ(f.narrow(0, 0, experts).sum().item<double>(), e.narrow(0, 0, experts).sum().item<double>());
  }
  ASSERT_FALSE(expected.gradients.empty());
  for (const auto& [name, e] : expected.gradients) {
    const at::Tensor& f = found.gradients.at(name);
    const double difference = (f - e).norm().item<double>(), size = e.norm().item<double>();
    const double bf16 = name.find(".moe.") == std::string::npos ? 0.1 : 0.5;
    EXPECT_LE(difference, (exact ? cpu ? 1e-5 : 1e-4 : cpu ? 2e-3 : bf16) * size + 1e-12) << name;
  }
  EXPECT_TRUE(tied() || found.gradients.at("tok_embeddings.weight").select(0, 0).eq(0).all().item<bool>());
}

std::vector<Case> cases() {
  const OptionTable losses = {{"route_z_loss", 0.5}, {"route_aux_loss", 0.25}, {"balance", 1e-3}};
  const OptionTable biases = {{"attention_bias", true}, {"mlp_bias", true}};
  std::vector<Case> all;
  for (const ModelFamily* family : model_families()) {
    if (family->decoder == nullptr) continue;
    const std::string name(family->name);
    const bool experts = family->decoder->experts != DecoderTraits::Experts::none;
    all.push_back({name, name, "none", experts ? losses : OptionTable{}});
    all.push_back({name + "_documents", name, "none", experts ? losses : OptionTable{}, true});
    all.push_back({name + "_fp8_tensorwise", name, "fp8_tensorwise", experts ? losses : OptionTable{}});
  }
  all.push_back({"biases", "llama3", "none", biases});
  all.push_back({"biases_fp8_tensorwise", "llama3", "fp8_tensorwise", biases});
  all.push_back({"recomputed", "gpt_oss", "none", losses, false, nn::Recompute::full});
  all.push_back({"recomputed_op", "deepseek_v3", "fp8_tensorwise", losses, true, nn::Recompute::op});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Families, Padding, ::testing::Combine(test_devices(), ::testing::ValuesIn(cases())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

}  // namespace
}  // namespace halftone::padding_test
