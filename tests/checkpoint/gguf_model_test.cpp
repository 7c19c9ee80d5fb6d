// Names, rows and metadata that GGUF's architectures give our models, and what they refuse.
#include "halftone/checkpoint/gguf_model.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/support.h"
#include "halftone/models/registry.h"

namespace halftone::gguf_model_test {
namespace {

using testing::expect_error;
using Kind = GgufSource::Kind;

std::shared_ptr<ModelDescription> model(const std::string& name, const OptionTable& overrides = {}) {
  for (const ModelFamily* family : model_families()) {
    if (family->name != name) continue;
    auto m = family->flavor(*family, "debugmodel");
    for (const auto& [key, value] : overrides) EXPECT_TRUE(m->set(key, value)) << key;
    return m;
  }
  ADD_FAILURE() << name;
  return nullptr;
}
const DecoderConfig& config(const std::shared_ptr<ModelDescription>& m) { return dynamic_cast<const DecoderConfig&>(*m); }

std::map<std::string, GgufValue> entries(const DecoderConfig& c) {
  const GgufMetadata all = gguf_metadata(c);
  return {all.begin(), all.end()};
}

TEST(GgufModel, EveryFamilyHasAnArchitecture) {
  const std::map<std::string_view, std::string> expected{{"llama3", "llama"},         {"mistral", "llama"},      {"qwen2", "qwen2"},
                                                         {"qwen3", "qwen3"},          {"qwen3_moe", "qwen3moe"}, {"gpt_oss", "gpt-oss"},
                                                         {"deepseek_v3", "deepseek2"}};
  for (const ModelFamily* family : model_families()) {
    const auto m = family->flavor(*family, "debugmodel");
    if (config(m).latent()) m->set("q_lora_rank", int64_t{64});
    const auto e = entries(config(m));
    EXPECT_EQ(std::get<std::string>(e.at("general.architecture")), expected.at(family->name));
    EXPECT_EQ(std::get<uint32_t>(e.at(expected.at(family->name) + ".block_count")), static_cast<uint32_t>(config(m).n_layers));
  }
}

TEST(GgufModel, LatentAttentionSharesOneHead) {
  const auto m = model("deepseek_v3", {{"route_score", std::string("sigmoid")}, {"route_scale", 2.5}, {"q_lora_rank", int64_t{64}}});
  auto e = entries(config(m));
  const auto number = [&](const char* key) { return std::get<uint32_t>(e.at(std::string("deepseek2.") + key)); };
  EXPECT_EQ(number("attention.head_count_kv"), 1u);
  EXPECT_EQ(number("attention.key_length"), 512u + 64u);
  EXPECT_EQ(number("attention.value_length"), 512u);
  EXPECT_EQ(number("attention.key_length_mla"), 128u + 64u);
  EXPECT_EQ(number("attention.value_length_mla"), 128u);
  EXPECT_EQ(number("attention.q_lora_rank"), 64u);
  EXPECT_EQ(number("rope.dimension_count"), 64u);
  EXPECT_EQ(number("leading_dense_block_count"), 1u);
  EXPECT_EQ(number("expert_gating_func"), 2u);
  EXPECT_EQ(std::get<float>(e.at("deepseek2.expert_weights_scale")), 2.5f);
  EXPECT_EQ(std::get<float>(e.at("deepseek2.rope.scaling.yarn_log_multiplier")), static_cast<float>(0.1 * 0.7));
}

TEST(GgufModel, RowsOfOneTensorBecomeTwo) {
  const auto m = model("deepseek_v3");
  const std::vector<GgufSource> kv = gguf_sources(config(m), "layers.3.attention.wkv_b.weight", {16 * 256, 512});
  ASSERT_EQ(kv.size(), 2u);
  EXPECT_EQ(kv[0].name, "blk.3.attn_k_b.weight");
  EXPECT_EQ(kv[0].shape, (std::vector<int64_t>{16, 512, 128}));
  EXPECT_TRUE(kv[0].transposed);
  EXPECT_EQ(kv[1].name, "blk.3.attn_v_b.weight");
  EXPECT_EQ(kv[1].shape, (std::vector<int64_t>{16, 128, 512}));
  EXPECT_EQ(kv[1].first, 128);
  const auto g = model("gpt_oss");
  const std::vector<GgufSource> gate_up = gguf_sources(config(g), "layers.0.moe.experts.mlp1_weight", {8, 5760, 256});
  ASSERT_EQ(gate_up.size(), 2u);
  EXPECT_EQ(gate_up[1].name, "blk.0.ffn_up_exps.weight");
  EXPECT_EQ(gate_up[1].shape, (std::vector<int64_t>{8, 2880, 256}));
  EXPECT_EQ(gate_up[1].first, 1);
  EXPECT_EQ(gate_up[1].step, 2);
  EXPECT_EQ(gguf_sources(config(g), "layers.0.moe.experts.mlp1_bias", {8, 5760})[0].shape, (std::vector<int64_t>{8, 2880}));
}

TEST(GgufModel, NamesDependOnTheArchitecture) {
  const auto name = [](const std::shared_ptr<ModelDescription>& m, const char* native, const std::vector<int64_t>& shape) {
    const std::vector<GgufSource> s = gguf_sources(config(m), native, shape);
    return s.empty() ? std::string() : s[0].name;
  };
  EXPECT_EQ(name(model("llama3"), "layers.0.ffn_norm.weight", {256}), "blk.0.ffn_norm.weight");
  EXPECT_EQ(name(model("gpt_oss"), "layers.0.ffn_norm.weight", {256}), "blk.0.post_attention_norm.weight");
  EXPECT_EQ(name(model("gpt_oss"), "layers.0.attention.sinks", {64}), "blk.0.attn_sinks.weight");
  EXPECT_EQ(name(model("qwen3"), "layers.0.attention.q_norm.weight", {128}), "blk.0.attn_q_norm.weight");
  EXPECT_EQ(name(model("deepseek_v3"), "layers.0.attention.q_norm.weight", {64}), "blk.0.attn_q_a_norm.weight");
  EXPECT_EQ(name(model("deepseek_v3"), "layers.1.moe.expert_bias", {8}), "blk.1.exp_probs_b.bias");
  EXPECT_EQ(name(model("qwen3_moe"), "layers.1.moe.expert_bias", {64}), "");  // no such tensor there
  EXPECT_EQ(name(model("llama3"), "output.weight", {2048, 256}), "output.weight");
  EXPECT_EQ(name(model("qwen3"), "output.weight", {2048, 256}), "");  // tied
  EXPECT_EQ(gguf_sources(config(model("qwen3_moe")), "layers.1.moe.router.gate.weight", {64, 256})[0].kind, Kind::other);
  EXPECT_EQ(gguf_sources(config(model("qwen3_moe")), "layers.1.moe.experts.w2", {64, 256, 768})[0].kind, Kind::matrix);
  EXPECT_EQ(gguf_sources(config(model("qwen3")), "tok_embeddings.weight", {2048, 256})[0].kind, Kind::table);
  expect_error(
      [] {
        gguf_sources(config(model("llama3")), "layers.0.attention.extra.weight", {4, 4});
      },
      "llama has no tensor for layers.0.attention.extra.weight");
}

TEST(GgufModel, RopeScalingIsMetadataOrFactors) {
  const auto with = [](const char* type) {
    return model(
        "llama3",
        {{"rope_scaling", true}, {"rope_type", std::string(type)}, {"rope_factor", 8.0}, {"rope_original_context", int64_t{1024}}});
  };
  const auto linear = with("linear"), yarn = with("yarn"), llama3 = with("llama3"), dynamic = with("dynamic");
  EXPECT_EQ(std::get<std::string>(entries(config(linear)).at("llama.rope.scaling.type")), "linear");
  auto e = entries(config(yarn));
  EXPECT_EQ(std::get<std::string>(e.at("llama.rope.scaling.type")), "yarn");
  EXPECT_EQ(std::get<uint32_t>(e.at("llama.rope.scaling.original_context_length")), 1024u);
  EXPECT_FALSE(e.contains("llama.rope.scaling.attn_factor"));  // the usual one
  yarn->set("rope_attention_factor", 1.0);
  EXPECT_NEAR(std::get<float>(entries(config(yarn)).at("llama.rope.scaling.attn_factor")), 1 / (0.1 * std::log(8) + 1), 1e-6);
  EXPECT_FALSE(entries(config(llama3)).contains("llama.rope.scaling.type"));
  const std::vector<float> factors = gguf_rope_factors(config(llama3));
  ASSERT_EQ(factors.size(), 8u);  // heads of 16
  EXPECT_EQ(factors.front(), 1);
  EXPECT_EQ(factors.back(), 8);
  EXPECT_TRUE(gguf_rope_factors(config(yarn)).empty());
  EXPECT_EQ(std::get<uint32_t>(entries(config(dynamic)).at("llama.context_length")), 1024u);  // unscaled up to there
}

TEST(GgufModel, WindowsBoundTheContextWhereTheGraphHasNone) {
  const auto mistral = model("mistral", {{"window", int64_t{512}}});
  EXPECT_EQ(std::get<uint32_t>(entries(config(mistral)).at("llama.context_length")), 512u);
  const auto gpt_oss = model("gpt_oss");
  EXPECT_EQ(std::get<uint32_t>(entries(config(gpt_oss)).at("gpt-oss.attention.sliding_window")), 128u);
  EXPECT_EQ(std::get<uint32_t>(entries(config(gpt_oss)).at("gpt-oss.context_length")), 131072u);
}

TEST(GgufModel, RefusesWhatTheGraphDoesNotCompute) {
  const auto refused = [](const std::string& name, const OptionTable& overrides, const std::string& part) {
    const auto m = model(name, overrides);
    expect_error([&] { gguf_metadata(config(m)); }, part);
  };
  refused("llama3", {{"rotary_dim", int64_t{8}}}, "llama rotates whole heads");
  refused("qwen3", {{"attention_bias", true}}, "qwen3 has no biases");
  refused("qwen3_moe", {{"route_norm", false}}, "qwen3moe has softmax gates that sum to 1");
  refused("qwen3_moe", {{"dense_layers", int64_t{1}}}, "no route_groups, route_scale, shared_experts and dense_layers");
  refused("gpt_oss", {{"window", int64_t{0}}}, "gpt-oss alternates layers");
  refused("gpt_oss", {{"window_layers", std::string("wwf")}}, "window_layers = wwf");
  refused("gpt_oss", {{"tied", true}}, "a head of its own");
  refused("deepseek_v3", {{"shared_experts", int64_t{0}}}, "needs shared experts");
  refused("deepseek_v3", {{"latent_norm_eps", 1e-7}}, "one epsilon");
  refused("deepseek_v3", {{"mscale", 0.0}, {"q_lora_rank", int64_t{64}}}, "needs YaRN with equal mscale");
  refused("deepseek_v3", {{"q_lora_rank", int64_t{0}}}, "needs queries of low rank");
  refused("deepseek_v3", {{"n_layers", int64_t{27}}, {"q_lora_rank", int64_t{64}}}, "deepseek2 with 27 layers has queries of full rank");
  const OptionTable linear{
      {"rope_scaling", true}, {"rope_type", std::string("linear")}, {"rope_factor", 4.0}, {"q_lora_rank", int64_t{64}}};
  refused("deepseek_v3", linear, "deepseek2 has no RoPE scaling of this type (model.overrides.rope_type = linear)");
  refused("qwen3", {{"rope_scaling", true}, {"rope_type", std::string("llama3")}, {"rope_factor", 4.0}},
          "qwen3 has no RoPE scaling of this type");
  // A family without an architecture.
  DecoderTraits traits = *model_families()[0]->decoder;
  traits.gguf = nullptr;
  ModelFamily family = *model_families()[0];
  family.decoder = &traits, family.name = "newest";
  const DecoderConfig c(family);
  expect_error([&] { gguf_metadata(c); }, "no architecture for newest");
}

}  // namespace
}  // namespace halftone::gguf_model_test
