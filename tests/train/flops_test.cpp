#include "halftone/train/flops.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

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
