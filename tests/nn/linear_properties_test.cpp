// Properties of a linear layer in single recipes: exact sums, stored weights, fake quantisation.
#include <gtest/gtest.h>

#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"
#include "nn/linear_support.h"

namespace halftone::nn::linear_properties_test {
namespace {

class LinearProperties : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, LinearProperties, test_devices(), [](const auto& info) { return info.param; });

LinearRecipe recipe(const char* scheme) { return layer_recipe(scheme, {}, "test").linear; }

TEST_P(LinearProperties, BiasGradientIsTheSumOfDy) {
  const at::Tensor x = data_r({1024, 1024}, 1234), w = data_r({2048, 1024}, 1235), dy = data_r({1024, 2048}, 3);
  const LinearResult r = OneLinear(w, recipe("mxfp8_e4m3"), data_r({2048}, 7)).run(x, dy);
  EXPECT_GE(sqnr(dy.to(at::kDouble).sum(0), r.db), 100);  // numerics.md 13.2 asks for 40
}

// A layer with stored codes equals the fp32 layer of the dequantised weights.
TEST_P(LinearProperties, StoredWeightsEqualTheirNumbers) {
  at::manual_seed(4);
  for (const char* scheme : {"int8_weight", "int4_weight"}) {
    for (const std::vector<int64_t>& lead : {std::vector<int64_t>{5}, {2, 3}, {2, 3, 4}}) {
      std::vector<int64_t> shape = lead, out = lead;
      shape.push_back(32), out.push_back(32);
      const at::Tensor x = normal(shape), dy = normal(out), w = normal({32, 32});
      const LinearRecipe r = recipe(scheme);
      OneLinear layer(w, r);
      layer.store_weight(r.w_forward);
      OneLinear plain(dequantize(*layer.weight().stored), recipe("none"));
      const LinearResult e = plain.run(x, dy), y = layer.run(x, dy);
      EXPECT_TRUE(at::allclose(y.y, e.y, 1.3e-6, 1e-5));
      EXPECT_TRUE(at::allclose(y.dx, e.dx, 1.3e-6, 1e-5));
      EXPECT_TRUE(at::allclose(y.dw, e.dw, 1.3e-6, 1e-5));
    }
  }
}

TEST_P(LinearProperties, BitnetEqualsFakeQuantisation) {
  // fp32 layer against straight-through fake quantisation, written out here.
  at::manual_seed(11);
  const at::Tensor x = normal({24, 32}), w = normal({32, 32}), dy = normal({24, 32});
  const at::Tensor sx = x.abs().amax(1, true).div(127).clamp_min(1e-5), xq = (x * sx.reciprocal()).round().clamp(-127, 127) * sx;
  const at::Tensor sw = w.abs().mean(at::kDouble).to(at::kFloat).clamp_min(1e-5), wq = (w * sw.reciprocal()).round().clamp(-1, 1) * sw;
  const LinearResult y = OneLinear(w, recipe("bitnet")).run(x, dy);
  EXPECT_TRUE(at::allclose(y.y, at::mm(xq, wq.t()), 1.3e-6, 1e-5));
  EXPECT_TRUE(at::allclose(y.dx, at::mm(dy, wq), 1.3e-6, 1e-5));
  EXPECT_TRUE(at::allclose(y.dw, at::mm(dy.t(), xq), 1.3e-6, 1e-5));
}

struct Shape {
  int64_t m, k, n;
};
class LargeProducts : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, LargeProducts, testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

// int8 and int4: every sum of codes is exact, (sum * row scale) * column scale in fp32 (numerics.md 13.1).
TEST_P(LargeProducts, IntegerProductsAreExact) {
  for (const Element element : {Element::int8, Element::int4}) {
    const OperandSpec spec = detail::rows(element);
    for (const Shape& s :
         {Shape{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}, {150, 2880, 1408}, {17, 1408, 2880}, {1, 96, 32}}) {
      const auto quantised = [&](int64_t rows, uint64_t seed) {
        CopyRequest request = copy_request(spec, spec, DType::bf16, CopyUse::rows, false, process_hardware(test_device().type()));
        return quantize(data_r({rows, s.k}, seed), &request, nullptr).row;
      };
      const Operand a = quantised(s.m, 1), b = quantised(s.n, 2);
      const at::Tensor found = at::empty({s.m, s.n}, on_device());
      multiply(a, b, found, {});
      const auto codes = [](const Operand& o) { return o.codes.view(at::kChar).to(at::kDouble); };
      const at::Tensor sums = at::mm(codes(a), codes(b).t()).to(at::kFloat);  // exact in fp64
      EXPECT_TRUE(at::equal(found, sums * a.scales.unsqueeze(1) * b.scales)) << s.m << " x " << s.k << " x " << s.n;
    }
  }
}

}  // namespace
}  // namespace halftone::nn::linear_properties_test
