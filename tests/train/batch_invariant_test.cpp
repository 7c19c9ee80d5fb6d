#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "invariant.h"
#include "ops/test_device.h"
#include "small_engine.h"

namespace halftone::batch_invariant_test {
namespace {

struct Case {
  std::string name;
  std::vector<std::string> options;
};

// Rows of a training batch into which documents of these lengths are packed; the one that is compared is at `row` and `place`.
constexpr int64_t kPlaces = 256, kLength = 150;

// Trains a few steps, then the logits of the document's tokens in a training forward pass over packed rows, with autograd on.
class Packed {
 public:
  Packed(const Case& c, at::Device device) : device_(device) {
    std::vector<std::string> options = {"--debug.batch_invariant", "--training.dataloader.packing=best_fit"};
    options.insert(options.end(), c.options.begin(), c.options.end());
    Engine::Options o = small_options();
    o.positions = kPlaces, o.device = device;
    engine_ = std::make_unique<Engine>(small_config(options), o);
    engine_->initialize();
    at::manual_seed(5);
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<MicroBatch> batches = small_step();
      for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(device), b.labels = b.labels.to(device);
      engine_->step(batches, step, 1.0);
    }
    tokens_ = at::randint(kSmallVocabulary, {kLength}, at::kLong);
  }

  Engine& engine() { return *engine_; }

  // The document at a place of a row, between other documents.
  at::Tensor of_training(int64_t rows, int64_t row, int64_t place) {
    at::Tensor tokens = at::randint(kSmallVocabulary, {rows, kPlaces}, at::kLong);
    tokens[row].narrow(0, place, kLength).copy_(tokens_);
    at::Tensor start = at::zeros({rows, kPlaces}, at::kInt), positions = at::empty({rows, kPlaces}, at::kInt);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int64_t> begins = {0, 7 + r, 90, kPlaces};
      if (r == row) begins = {0, place / 2, place, place + kLength, kPlaces};
      for (size_t i = 0; i + 1 < begins.size(); ++i) {
        const int64_t n = begins[i + 1] - begins[i];
        start[r].narrow(0, begins[i], n).fill_(begins[i]);
        positions[r].narrow(0, begins[i], n).copy_(at::arange(n, at::kInt));
      }
    }
    nn::ModelInput input;
    input.tokens = tokens.to(device_), input.positions = positions.to(device_), input.documents = documents_of(start, device_);
    nn::Model& model = engine_->model();
    const nn::SequenceInfo info = model.sequence_info(input);
    nn::Stream s = model.embed(input.tokens, info);
    for (int64_t i = 0; i < model.blocks(); ++i) s = model.block(i, s, info);
    return model.logits({s.x.detach(), s.branch.detach()}, info).narrow(0, row * kPlaces + place, kLength);
  }

  // Logits of the last token of every chunk, with a KV cache; the last tokens one by one.
  at::Tensor of_cache(int64_t chunk, int64_t decoded, std::vector<int64_t>& places) {
    std::vector<KvCache> caches = engine_->model().make_caches(1, kLength + 37);
    std::vector<at::Tensor> rows;
    for (int64_t at = 0; at < kLength;) {
      const int64_t n = at < kLength - decoded ? std::min(chunk, kLength - decoded - at) : 1;
      rows.push_back(engine_->model().next_token_logits(tokens_.narrow(0, at, n).unsqueeze(0).to(device_), caches));
      at += n;
      places.push_back(at - 1);
    }
    return at::cat(rows);
  }

  at::Tensor tokens_;

 private:
  at::Device device_;
  std::unique_ptr<Engine> engine_;
};

const std::string kWide = "--training.mixed_precision_param=float32";
// Latent attention, sigmoid gates, experts. hf_golden_test.cpp has every family without a recipe.
const std::string kDeepSeek = R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":4,"n_kv_heads":4,"ffn_dim":128,"vocab_size":256,
  "kv_lora_rank":32,"q_lora_rank":32,"qk_nope_head_dim":32,"qk_rope_head_dim":16,"v_head_dim":32,"dense_layers":1,"num_experts":8,
  "experts_per_token":3,"expert_ffn_dim":64,"shared_experts":1,"route_score":"sigmoid","route_norm":true,"route_scale":2.5})",
                  kExperts = R"(--quantize.targets=["Linear", "GroupedExperts"])";
const std::vector<Case> kCases = {
    {"int8", {"--quantize.scheme=int8"}},
    {"bf16", {}},
    {"fp8_rowwise", {"--quantize.scheme=fp8_rowwise"}},
    {"fp8_blockwise", {"--quantize.scheme=fp8_blockwise"}},
    {"mxfp8", {"--quantize.scheme=mxfp8_e4m3"}},
    {"mxfp4", {"--quantize.scheme=mxfp4"}},
    {"int4", {"--quantize.scheme=int4"}},
    {"int8_weight", {"--quantize.scheme=int8_weight"}},
    {"bitnet", {"--quantize.scheme=bitnet"}},
    {"deepseek_v3_int8", {"--model.name=deepseek_v3", kDeepSeek, "--quantize.scheme=int8", kExperts}},
};
// Attention on a GPU has no such kernel in float32.
const std::vector<Case> kWideCases = {{"fp32", {kWide}}, {"int8_fp32", {"--quantize.scheme=int8", kWide}}};

class BatchInvariant : public OnDeviceWith<Case> {};

// The trainer's and the sampler's probabilities have a KL divergence of 0, because their logits are equal.
TEST_P(BatchInvariant, TrainingPrefillAndDecodingHaveTheSameBits) {
  const BatchInvariantScope invariant;
  Packed packed(param(), test_device());
  const at::Tensor expected = packed.of_training(2, 1, 37);
  EXPECT_GT(expected.abs().max().item<float>(), 0.01);
  EXPECT_TRUE(same_bits(expected, packed.of_training(1, 0, 0))) << "another batch and place";
  EXPECT_TRUE(same_bits(expected, packed.of_training(3, 0, 106))) << "another batch and place";
  for (const int64_t chunk : {1, 7, 64, 150}) {
    std::vector<int64_t> places;
    const at::Tensor found = packed.of_cache(chunk, 20, places);
    const at::Tensor wanted = expected.index_select(0, at::tensor(places, at::kLong).to(expected.device()));
    EXPECT_TRUE(same_bits(wanted, found)) << "chunks of " << chunk;
    const at::Tensor p = at::log_softmax(wanted.to(at::kDouble), -1), q = at::log_softmax(found.to(at::kDouble), -1);
    EXPECT_EQ((p.exp() * (p - q)).sum().item<double>(), 0) << "KL in chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, BatchInvariant, ::testing::Combine(test_devices(), ::testing::ValuesIn(kCases)),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

INSTANTIATE_TEST_SUITE_P(Wide, BatchInvariant, ::testing::Combine(::testing::Values(std::string("cpu")), ::testing::ValuesIn(kWideCases)),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

// The ordinary kernels of attention sum the same keys in several orders.
TEST(BatchInvariance, BitsDifferWithoutIt) {
  Packed packed(kCases[1], at::kCPU);
  const at::Tensor expected = packed.of_training(2, 1, 37);
  std::vector<int64_t> places;
  const at::Tensor found = packed.of_cache(7, 20, places);
  EXPECT_FALSE(same_bits(expected.index_select(0, at::tensor(places, at::kLong)), found));
}

TEST(BatchInvariance, OtherRecipesAreRefusedByName) {
  const BatchInvariantScope invariant;
  for (const auto& [scheme, word] : {std::pair{"fp8_tensorwise", "one scale for all rows"}, {"nvfp4", "one scale for all rows"}}) {
    try {
      Engine engine(small_config({"--debug.batch_invariant", std::string("--quantize.scheme=") + scheme}), small_options());
      ADD_FAILURE() << scheme;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("debug.batch_invariant: layers."), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace halftone::batch_invariant_test
