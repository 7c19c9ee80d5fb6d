#include "halftone/models/registry.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/models/decoder_config.h"
#include "halftone/nn/parameter_store.h"

namespace halftone {
namespace {

// The small model of a family, as defined by its record.
BuiltModel small(const ModelFamily& family, const OptionTable& overrides = {}) {
  ModelConfig config;
  config.name = family.name, config.overrides = overrides;
  return build_model(config, 0);
}

void expect_reads_what_it_writes(const ModelDescription& written) {
  const ModelFamily& family = written.family();
  const nlohmann::json file = nlohmann::json::parse(written.hf_config("float32").dump());
  EXPECT_EQ(file["model_type"], family.hf_type);
  EXPECT_EQ(file["architectures"], nlohmann::json::array({family.hf_architecture}));
  const auto read = family.read_hf(family, file, "config.json");
  EXPECT_EQ(&read->family(), &family);
  EXPECT_EQ(read->hf_parameters(), written.hf_parameters()) << file.dump();
}

TEST(Registry, AFamilyReadsTheConfigurationThatItWrites) {
  for (const ModelFamily* family : model_families()) {
    const DecoderTraits& traits = *family->decoder;
    for (const DecoderFlavor& flavor : traits.flavors) expect_reads_what_it_writes(*family->flavor(*family, flavor.name));
    std::vector<OptionTable> others;
    for (const std::string type : {"linear", "llama3", "yarn", "dynamic"})
      others.push_back({{"rope_scaling", true},
                        {"rope_type", type},
                        {"rope_factor", 3.5},
                        {"rope_low_freq_factor", 1.5},
                        {"rope_high_freq_factor", 5.0},
                        {"rope_beta_fast", 16.0},
                        {"rope_beta_slow", 2.0},
                        {"rope_attention_factor", type == "yarn" ? 0.7 : 0.0},
                        {"rope_truncate", false},
                        {"rope_original_context", int64_t{4096}}});
    if (traits.windows != DecoderTraits::Windows::none) others.push_back({{"window", int64_t{32}}});
    if (traits.windows == DecoderTraits::Windows::some_layers)
      for (const std::string layers : {"fw", "wf", "ffffw", "wwwwwf"})
        others.push_back({{"window", int64_t{32}}, {"window_layers", layers}, {"n_layers", int64_t{6}}});
    if (traits.may_attention_bias) others.push_back({{"attention_bias", true}});
    if (traits.may_mlp_bias) others.push_back({{"mlp_bias", true}});
    if (traits.latent.kv_rank == 0)
      others.push_back({{"head_dim", int64_t{24}}, {"n_kv_heads", int64_t{1}}, {"norm_eps", 3e-5}, {"rope_theta", 12345.0}});
    else
      others.push_back(
          {{"q_lora_rank", int64_t{24}}, {"kv_lora_rank", int64_t{8}}, {"v_head_dim", int64_t{40}}, {"latent_norm_eps", 3e-5}});
    if (traits.experts != DecoderTraits::Experts::none)
      others.push_back({{"num_experts", int64_t{12}}, {"experts_per_token", int64_t{5}}, {"expert_ffn_dim", int64_t{40}}});
    if (traits.experts == DecoderTraits::Experts::deepseek)
      others.push_back({{"route_score", std::string("sigmoid")},
                        {"route_groups", int64_t{4}},
                        {"route_kept_groups", int64_t{2}},
                        {"shared_experts", int64_t{0}},
                        {"route_norm", true}});
    if (!traits.clamped && traits.experts != DecoderTraits::Experts::none)
      others.push_back({{"dense_layers", int64_t{2}}, {"route_norm", false}});
    for (const bool tied : {false, true}) others.push_back({{"tied", tied}});
    for (const OptionTable& overrides : others) expect_reads_what_it_writes(*small(*family, overrides).description);
  }
}

TEST(Registry, EveryTensorHasAName) {
  for (const ModelFamily* family : model_families()) {
    OptionTable biases;
    if (family->decoder->may_attention_bias) biases["attention_bias"] = true;
    if (family->decoder->may_mlp_bias) biases["mlp_bias"] = true;
    small(*family, biases).model->for_each_parameter([&](const nn::Parameter& p) {
      const auto hf = family->hf_name(p.fqn, 3);
      ASSERT_TRUE(hf.has_value()) << p.fqn;
      int64_t expert = 0;
      if (!hf->empty()) {
        EXPECT_EQ(family->native_name(*hf, &expert), p.fqn);
      }
      EXPECT_EQ(expert, family->tensor(p.fqn)->experts_apart() ? 3 : 0) << p.fqn;
    });
  }
}

TEST(Registry, UnitsAreEmbeddingBlocksAndHead) {
  for (const ModelFamily* family : model_families()) {
    const BuiltModel built = small(*family);
    std::vector<std::string> expected = {"tok_embeddings"}, found;
    for (int64_t i = 0; i < built.model->size().layers; ++i) expected.push_back("layers." + std::to_string(i));
    expected.push_back("norm");
    nn::ParameterStore store;
    nn::StorageOptions storage;
    storage.compute = at::kFloat, storage.trainable = false;
    store.materialize(*built.model, storage);
    for (const auto& unit : store.units()) found.push_back(unit.name);
    EXPECT_EQ(found, expected) << family->name;
    int64_t in_blocks = 0;
    built.model->for_each_module([&](const nn::Module& m) {
      in_blocks += m.block() >= 0;
      EXPECT_EQ(m.block() >= 0, m.fqn().starts_with("layers.")) << m.fqn();
    });
    EXPECT_GT(in_blocks, 0);
  }
}

TEST(Registry, DescribesTheModelByName) {
  ModelConfig config;
  config.overrides = {{"dim", int64_t{128}}, {"norm_eps", int64_t{1}}};
  config.attn_mask_type = "block_causal", config.rope_scaling_mode = "off";
  const BuiltModel built = build_model(config, 77);
  EXPECT_TRUE(built.block_causal);
  const nlohmann::json json = built.description->json();
  EXPECT_EQ(json["dim"], 128);
  EXPECT_EQ(json["norm_eps"].dump(), "1.0") << "an integer stands for a number";
  EXPECT_EQ(json["vocab_size"], 2048) << "the flavour's, whatever fewer entries the tokenizer has";
  EXPECT_EQ(build_model({}, 2004).model->size().parameters, 6163712) << "as torchtitan's debug model";
  EXPECT_EQ(json["rope_scaling"], false);
  const auto refused = [&](const std::string& name, const OptionValue& value, const std::string& message) {
    ModelConfig bad = config;
    bad.overrides[name] = value;
    try {
      build_model(bad, 77);
      FAIL() << name;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused("width", int64_t{1},
          "model.overrides.width: llama3 has no such hyper-parameter; it has attention_bias, balance, block_causal, dense_layers,");
  refused("dim", 0.5, "model.overrides.dim: expected an integer, found another type");
  refused("vocab_size", int64_t{5},
          "the tokenizer has 77 entries, llama3 debugmodel a vocabulary of 5; set model.overrides.vocab_size = 77");
  refused("window", int64_t{32}, "model.overrides.window: llama3 has no sliding windows, found 32");
  refused("init", std::string("v3"), "model.overrides.init: expected v1 or v2, found 'v3'");
  refused("rope_type", int64_t{1}, "model.overrides.rope_type: expected a string, found another type");
  config.rope_scaling_mode = "on";
  refused("rope_type", std::string("longrope"), "model.overrides.rope_type: expected one of default, linear, llama3, yarn, dynamic, found");
  config.name = "mistral";
  refused("attention_bias", true, "model.overrides.attention_bias: mistral has no biases");
  refused("window_layers", std::string("fw"), "model.overrides.window_layers: mistral has its window in all layers or none, expected w");
  config.name = "qwen2";
  refused("attention_bias", true, "model.overrides.attention_bias: qwen2 has biases on q, k and v anyway and none on o");
  refused("window_layers", std::string("x"),
          "model.overrides.window_layers: expected letters w (with a window) and f (without), found 'x'");
  config.name = "qwen3";
  refused("num_experts", int64_t{8}, "model.overrides.num_experts: qwen3 has no experts, found 8");
  refused("kv_lora_rank", int64_t{8}, "model.overrides.kv_lora_rank: qwen3 has no latent attention, found 8");
  config.flavor = "debugmodel_moe", config.overrides = {};
  EXPECT_EQ(build_model(config, 77).description->family().name, "qwen3_moe");
  refused("num_experts", int64_t{0}, "model.overrides.num_experts: qwen3_moe has experts, at least one, found 0");
  refused("experts_per_token", int64_t{65}, "model.overrides.experts_per_token: expected 1 to num_experts = 64, found 65");
  refused("route_score", std::string("relu"), "model.overrides.route_score: expected softmax or sigmoid, found 'relu'");
  refused("dense_layers", int64_t{9}, "expected shared_experts of at least 0 and dense_layers of 0 to n_layers, found 0 and 9");
  config.name = "deepseek_v3", config.flavor = "debugmodel";
  refused("route_groups", int64_t{3}, "model.overrides.route_groups: 3 groups of the 8 experts are not of equal size");
  refused("n_kv_heads", int64_t{8}, "latent attention has n_kv_heads = n_heads and no rotary_dim, found 8");
  config.overrides = {{"n_heads", int64_t{4}}};
  EXPECT_EQ(build_model(config, 77).description->json()["n_kv_heads"], 4) << "n_heads alone does";
  config.overrides = {};
  config.name = "gpt_oss";
  refused("shared_experts", int64_t{1}, "model.overrides: gpt_oss has no shared_experts and no dense_layers");
  config.name = "gpt_neo";
  refused("dim", int64_t{128},
          "model.name: this build has llama3, mistral, qwen2, qwen3, qwen3_moe, deepseek_v3, gpt_oss; found 'gpt_neo'");
}

}  // namespace
}  // namespace halftone
