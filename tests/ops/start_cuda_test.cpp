#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "halftone/gemm/choice_file.h"
#include "halftone/ops/init.h"
#include "halftone/ops/product.h"
#include "halftone/ops/product_choices.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

class StartOnCuda : public testing::Test {
 protected:
  void SetUp() override { enter_device("cuda"); }
  void TearDown() override { leave_device(); }
};

TEST_F(StartOnCuda, InitialWeightsHaveTheBitsOfTheProcessor) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double cut : {0.0, 2.0, 0.03}) {
      at::Tensor here = at::empty({37, 1001}, type), there = at::empty({37, 1001}, at::TensorOptions(type).device(test_device()));
      fill_normal(here, philox_key(3, "w#init"), 0.02, cut);
      fill_normal(there, philox_key(3, "w#init"), 0.02, cut);
      EXPECT_TRUE(at::equal(here, there.cpu())) << type << ", cut " << cut;
    }
  }
}

TEST_F(StartOnCuda, MeasuredProductsAreKeptInAFile) {
  std::string folder = (std::filesystem::temp_directory_path() / "halftone-cache-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    cuda::ProductChoices choices(test_device(), folder);
    const at::Tensor a = at::randn({208, 528}, at::TensorOptions(at::kBFloat16).device(test_device()));
    const at::Tensor b = at::randn({176, 528}, a.options()), out = at::empty({208, 176}, a.options());
    multiply(plain_operand(a, false), plain_operand(b, false), out, {});
    EXPECT_TRUE(choices.keep_new());
    const gemm::LoadedChoices loaded = gemm::load_choices(choices.file());
    EXPECT_EQ(loaded.problem, "");
    EXPECT_GE(loaded.choices.size(), 1u);
    EXPECT_FALSE(choices.keep_new());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace halftone
