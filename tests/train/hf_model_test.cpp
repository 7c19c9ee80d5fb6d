#include "halftone/train/hf_model.h"

#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/models/decoder_config.h"
#include "halftone/models/llama3/family.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

DecoderConfig small() {
  DecoderConfig hf(llama3::kFamily);
  hf.dim = 64, hf.n_layers = 2, hf.n_heads = 4, hf.n_kv_heads = 2, hf.head_dim = 16, hf.ffn_dim = 128, hf.rope_scaling = false;
  return hf;
}

// The error for a configured model that differs from a folder's config.json; "" if they agree.
std::string difference(const DecoderConfig& run, const DecoderConfig& folder) {
  ModelConfig config;
  config.overrides = run.hyper_parameters();
  try {
    check_matches_hf(*build_model(config, 0).description, folder, "FOLDER");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HfModel, DifferencesHaveBothValuesAndTheOptionThatHelps) {
  const DecoderConfig plain = small();
  DecoderConfig scaled = plain;
  scaled.rope_scaling = true;
  EXPECT_EQ(difference(plain, plain), "");
  EXPECT_EQ(difference(scaled, scaled), "");
  EXPECT_EQ(
      difference(scaled, plain),
      "FOLDER/config.json disagrees with the model: rope_scaling is true, rope_factor 8, rope_high_freq_factor 4, rope_low_freq_factor "
      "1, rope_original_context 8192, rope_type llama3 in the configuration, false in the folder; set --model.rope_scaling_mode off");
  const std::string on = difference(plain, scaled);
  EXPECT_NE(on.find("rope_scaling is false in the configuration, true, rope_factor 8"), std::string::npos) << on;
  EXPECT_NE(on.find("set --model.overrides.rope_factor 8 "), std::string::npos) << on;
  EXPECT_TRUE(on.ends_with("--model.rope_scaling_mode on --model.overrides.rope_type llama3")) << on;
  DecoderConfig other = scaled;
  other.rope_factor = 32, other.head_dim = 32, other.norm_eps = 1e-6, other.tied = true, other.max_seq_len = 77;
  EXPECT_EQ(difference(scaled, other),
            "FOLDER/config.json disagrees with the model: head_dim is 16 in the configuration, 32 in the folder; norm_eps is 1e-05 in the "
            "configuration, 1e-06 in the folder; rope_factor is 8 in the configuration, 32 in the folder; tied is false in the "
            "configuration, true in the folder; set --model.overrides.head_dim 32 --model.overrides.norm_eps 1e-06 "
            "--model.overrides.rope_factor 32 --model.overrides.tied true");
}

TEST(HfModel, RopeOfDeepSeekScalesLongRowsAlone) {
  const auto mode = [](const std::string& name, int64_t length, const std::string& asked, bool from_hf = false) {
    JobConfig config;
    config.model.name = name, config.model.rope_scaling_mode = asked;
    config.training.seq_len = length, config.checkpoint.initial_load_in_hf = from_hf;
    resolve_model(config);
    const BuiltModel built = build_model(config.model, 0);
    return std::get<bool>(built.description->hyper_parameters().at("rope_scaling"));
  };
  EXPECT_FALSE(mode("deepseek_v3", 4096, "auto"));
  EXPECT_TRUE(mode("deepseek_v3", 4097, "auto"));
  EXPECT_TRUE(mode("deepseek_v3", 4096, "on"));
  EXPECT_FALSE(mode("deepseek_v3", 8192, "off"));
  EXPECT_TRUE(mode("deepseek_v3", 128, "auto", true)) << "as the folder says";
  EXPECT_TRUE(mode("gpt_oss", 128, "auto"));
  EXPECT_TRUE(mode("llama3", 128, "auto"));
}

TEST(HfModel, YarnScalesTheScoresOfLatentAttention) {
  ModelConfig config;
  config.name = "deepseek_v3", config.flavor = "671B";
  const auto factor = [&] { return dynamic_cast<const DecoderConfig&>(*build_model(config, 0).description).score_factor(); };
  EXPECT_NEAR(factor(), 1.8738542, 1e-6);  // (0.1 ln 40 + 1)^2
  config.flavor = "16B";
  EXPECT_NEAR(factor(), 1.5831215, 1e-6);  // (0.07 ln 40 + 1)^2
  config.rope_scaling_mode = "off";
  EXPECT_EQ(factor(), 1);
}

TEST(HfModel, ExportsTheTokenIdsThatWereImported) {
  EXPECT_EQ(exported_token_ids({}, 1, 2), (HfTokenIds{1, {}, {2}}));
  EXPECT_EQ(exported_token_ids({5, 6, {7, 2}}, 1, 2), (HfTokenIds{5, 6, {7, 2}}));
  EXPECT_EQ(exported_token_ids({5, {}, {7}}, 1, 2), (HfTokenIds{5, {}, {7, 2}})) << "the run's own documents end with 2";
  EXPECT_EQ(exported_token_ids({{}, {}, {7}}, {}, {}), (HfTokenIds{{}, {}, {7}}));
}

}  // namespace
}  // namespace halftone
