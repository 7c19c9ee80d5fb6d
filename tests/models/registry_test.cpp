#include "halftone/models/registry.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/nn/parameter_store.h"

namespace halftone {
namespace {

// The small model of a family, as its own record describes it.
BuiltModel small(const ModelFamily& family) {
  ModelConfig config;
  config.name = family.name;
  return build_model(config, 0);
}

TEST(Registry, AFamilyReadsTheConfigurationThatItWrites) {
  for (const ModelFamily* family : model_families()) {
    const auto written = small(*family).description;
    const nlohmann::json file = nlohmann::json::parse(written->hf_config("float32").dump());
    EXPECT_EQ(file["model_type"], family->hf_type);
    EXPECT_EQ(file["architectures"], nlohmann::json::array({family->hf_architecture}));
    const auto read = family->read_hf(*family, file, "config.json");
    EXPECT_EQ(&read->family(), family);
    EXPECT_EQ(read->hf_parameters(), written->hf_parameters()) << family->name;
  }
}

TEST(Registry, EveryTensorHasAName) {
  for (const ModelFamily* family : model_families()) {
    small(*family).model->for_each_parameter([&](const nn::Parameter& p) {
      const auto hf = family->hf_name(p.fqn);
      ASSERT_TRUE(hf.has_value()) << p.fqn;
      EXPECT_EQ(family->native_name(*hf), p.fqn);
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
    store.materialize(*built.model, {at::kCPU, at::kFloat, at::kFloat, false});
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
  EXPECT_EQ(json["vocab_size"], 77);
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
  refused("width", int64_t{1}, "model.overrides.width: llama3 has no such hyper-parameter; it has attention_bias, block_causal, depth_init, dim,");
  refused("dim", 0.5, "model.overrides.dim: expected an integer, found another type");
  refused("vocab_size", int64_t{5}, "model.overrides.vocab_size: 5 is smaller than the tokenizer's 77 entries");
  config.name = "gpt_oss";
  refused("dim", int64_t{128}, "model.name: this build has llama3, mistral, qwen2, qwen3; found 'gpt_oss'");
}

}  // namespace
}  // namespace halftone
