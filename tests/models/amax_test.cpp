// The amax that norms and SwiGLU compute (ops/activation.h) equals the one that quantisers compute.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "halftone/ops/activation.h"
#include "halftone/ops/operand.h"
#include "models/model_pass.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

struct Case {
  std::string name;
  std::vector<std::string> arguments;
  int64_t reads;  // quantisers per layer that read the amax of a tensor written by a norm or SwiGLU
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

// X of wq|wk|wv, w1|w3 and w2, the latter again for wgrad; dY of w1 and of w3.
const Case kCases[] = {{"fp8_tensorwise", {"--quantize.scheme=fp8_tensorwise"}, 6},
                       {"fp8_tensorwise_recomputed", {"--quantize.scheme=fp8_tensorwise", "--activation_checkpoint.mode=full"}, 9},
                       {"nvfp4", {"--quantize.scheme=nvfp4"}, 0},  // reads X and dY for those of the rotated matrices in any case
                       {"nvfp4_no_rotation", {"--quantize.scheme=nvfp4", "--quantize.use_hadamard=false"}, 6},
                       {"amdfp4_no_rotation", {"--quantize.scheme=amdfp4", "--quantize.use_hadamard=false"}, 6},
                       {"fp8_rowwise", {"--quantize.scheme=fp8_rowwise"}, 0},
                       {"mxfp4", {"--quantize.scheme=mxfp4"}, 0}};

class ProducerAmax : public OnDeviceWith<Case> {
 protected:
  void TearDown() override {
    amax_use().from_producers = true;
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDeviceWith::TearDown();
  }
};

TEST_P(ProducerAmax, ChangesNoBitOfLossAndGradients) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  amax_use().from_producers = false, amax_use().taken = 0;
  const Pass without = model_pass(param().arguments, test_device());
  EXPECT_EQ(amax_use().taken, 0);
  amax_use().from_producers = true;
  const Pass with = model_pass(param().arguments, test_device());
  EXPECT_EQ(amax_use().taken, param().reads * with.layers);
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_TRUE(at::equal(with.gradients, without.gradients));
}
INSTANTIATE_TEST_SUITE_P(Recipes, ProducerAmax, testing::Combine(test_devices(), testing::ValuesIn(kCases)),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

// A quantiser given an amax does not search for it: given a wrong one, it uses that.
class GivenAmax : public OnDevice {};
TEST_P(GivenAmax, IsBelieved) {
  CopyRequest row, transposed;
  row.spec = transposed.spec = find_linear_recipe("fp8_tensorwise")->x_forward;
  row.codes = transposed.codes = true;
  for (const int64_t rows : {64, 33}) {
    const at::Tensor x = at::full({rows, 80}, 2.0).to(at::kBFloat16).to(test_device());
    const auto bits = [&](float a) { return at::full({1}, static_cast<int64_t>(std::bit_cast<int32_t>(a)), at::kInt).to(test_device()); };
    const OperandCopies own = quantize(x, &row, &transposed), told = quantize(x, &row, &transposed, bits(2.0f)),
                        wrong = quantize(x, &row, &transposed, bits(4.0f));
    EXPECT_TRUE(at::equal(own.row.codes, told.row.codes) && at::equal(own.transposed.codes, told.transposed.codes));
    EXPECT_TRUE(at::equal(own.row.scales, told.row.scales) && at::equal(own.transposed.scales, told.transposed.scales));
    EXPECT_EQ(wrong.row.scales.item<float>(), 2 * own.row.scales.item<float>());
    EXPECT_EQ(wrong.transposed.scales.item<float>(), 2 * own.transposed.scales.item<float>());
  }
}
INSTANTIATE_TEST_SUITE_P(Device, GivenAmax, test_devices());

}  // namespace
}  // namespace halftone
