#include "halftone/train/flops.h"

#include <gtest/gtest.h>

#include "halftone/models/registry.h"

namespace halftone {
namespace {

// platform.md 4.1 to 4.4; other models as stated on their pages.
TEST(Flops, EveryFlavourHasTheParametersAndTheWorkOfItsTable) {
  struct Row {
    const char *family, *flavor;
    int64_t parameters;
    double gflop = 0;  // per token, at `length`
    int64_t length = 0;
    int64_t active = 0;  // parameters; 0: all
  };
  for (const Row& row : {
           Row{"llama3", "debugmodel", 6'163'712, 0.185, 8192},
           {"llama3", "1B", 1'235'814'400, 10.636, 8192},
           {"llama3", "3B", 3'212'749'824, 27.732, 8192},
           {"llama3", "8B", 8'030'261'248, 57.914, 8192},
           {"llama3", "70B", 70'553'706'496, 481.443, 8192},
           {"llama3", "405B", 405'853'388'800, 2625.449, 8192},
           {"llama3", "Llama-2-7B", 6'738'415'616},
           {"llama3", "Llama-2-13B", 13'015'864'320},
           {"llama3", "SmolLM2-135M", 134'515'008},
           {"llama3", "SmolLM2-360M", 361'821'120},
           {"llama3", "SmolLM2-1.7B", 1'711'376'384},
           {"mistral", "7B", 7'248'023'552, 55.568, 8192},
           {"mistral", "7B-v0.1", 7'241'732'096, 49.106, 8192},  // of which a token sees 4096
           {"qwen2", "0.5B", 494'032'768},
           {"qwen2", "1.5B", 1'543'714'304},
           {"qwen2", "3B", 3'085'938'688},
           {"qwen2", "7B", 7'615'616'512},
           {"qwen2", "14B", 14'770'033'664},
           {"qwen2", "32B", 32'763'876'352},
           {"qwen2", "72B", 72'706'203'648},
           {"qwen3", "debugmodel", 31'987'968, 0.997, 4096},
           {"qwen3", "0.6B", 596'049'920, 6.395, 4096},
           {"qwen3", "1.7B", 1'720'574'976, 13.142, 4096},
           {"qwen3", "4B", 4'022'468'096, 31.383, 4096},
           {"qwen3", "8B", 8'190'735'360, 52.658, 4096},
           {"qwen3", "14B", 14'768'307'200, 94.009, 4096},
           {"qwen3", "32B", 32'762'123'264, 217.675, 4096},
           {"qwen3", "debugmodel_moe", 315'758'848, 1.111, 4096, 51'517'696},
           {"qwen3", "30B-A3B", 30'532'122'624, 27.915, 4096, 3'353'032'704},
           {"qwen3", "235B-A22B", 235'093'634'560, 167.260, 4096, 22'190'763'520},
           {"deepseek_v3", "debugmodel", 33'014'016, 0.920, 4096, 28'098'816},
           {"deepseek_v3", "16B", 15'706'484'224, 18.106, 4096, 2'661'150'208},
           {"deepseek_v3", "236B", 235'741'434'880, 185.507, 4096, 21'375'800'320},
           {"deepseek_v3", "671B", 671'026'404'352, 281.158, 4096, 37'552'282'624},
           {"gpt_oss", "debugmodel", 183'397'920, 2.189, 8192, 147'912'224},
           {"gpt_oss", "20b", 20'914'757'184, 31.314, 8192, 4'187'440'704},
           {"gpt_oss", "120b", 116'829'156'672, 45.293, 8192, 5'711'982'912},
       }) {
    ModelConfig config;
    config.name = row.family, config.flavor = row.flavor;
    nn::ModelSize size = build_model(config, 0).model->size();
    EXPECT_EQ(size.parameters, row.parameters) << row.family << " " << row.flavor;
    EXPECT_EQ(size.active_parameters, row.active > 0 ? row.active : row.parameters) << row.family << " " << row.flavor;
    if (config.name == "gpt_oss") size.windowed_layers = 0;  // the table counts all that precedes
    if (row.length > 0) {
      EXPECT_NEAR(flops_per_token(size, row.length) * 1e-9, row.gflop, 5.01e-4) << row.family << " " << row.flavor;
    }
  }
}

// Llama 3 8B: N = 8,030,261,248, table 128256 x 4096, 32 layers, 32 heads of 128; S = 8192.
TEST(Flops, Llama8B) {
  const nn::ModelSize m{
      .layers = 32, .heads = 32, .qk_dim = 128, .v_dim = 128, .active_parameters = 8'030'261'248, .embedding_parameters = 128256LL * 4096};
  EXPECT_DOUBLE_EQ(flops_per_token(m, 8192), 6.0 * (8'030'261'248 - 525'336'576) + 6.0 * 32 * 32 * 256 * 8192);
}

TEST(Flops, TiedHeadIsCounted) {
  const nn::ModelSize tied{.active_parameters = 1000, .embedding_parameters = 400, .tied = true};
  const nn::ModelSize untied{.active_parameters = 1400, .embedding_parameters = 400};
  EXPECT_DOUBLE_EQ(flops_per_token(tied, 16), 6000);
  EXPECT_DOUBLE_EQ(flops_per_token(untied, 16), 6000);
}

TEST(Flops, RatesAreProducts) {
  EXPECT_DOUBLE_EQ(tflops(2e9, 1000), 2);
  EXPECT_DOUBLE_EQ(mfu_percent(2e9, 1000, 4e12), 50);
}

TEST(Flops, PeaksByDeviceName) {
  EXPECT_EQ(peak_flops("NVIDIA H200").bf16, 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H20").bf16, 148e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe").bf16, 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 NVL").bf16, 835e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3").bf16, 989e12);
  EXPECT_EQ(peak_flops("NVIDIA GB200").bf16, 2.5e15);
  EXPECT_EQ(peak_flops("NVIDIA B300 SXM6").bf16, 2.25e15);
  EXPECT_EQ(peak_flops("NVIDIA L40S").bf16, 362e12);
  EXPECT_EQ(peak_flops("nvidia l40s").bf16, 362e12);
  EXPECT_EQ(peak_flops("AMD Instinct MI300X").bf16, 1300e12);
  EXPECT_TRUE(peak_flops("NVIDIA RTX A6000").known);
  EXPECT_FALSE(peak_flops("Intel(R) Xeon(R)").known);
  EXPECT_EQ(peak_flops("Intel(R) Xeon(R)").bf16, 312e12);
}

}  // namespace
}  // namespace halftone
