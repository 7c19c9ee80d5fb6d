#include "halftone/gemm/decode.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/ops/operand.h"
#include "halftone/quantize/dequantize_ref.h"
#include "ops/test_device.h"
#include "quantize/operand_cases.h"

namespace halftone {
namespace {

class Decode : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, Decode, test_devices(), [](const auto& info) { return info.param; });

Operand on_cpu(Operand o) {
  for (at::Tensor* t : {&o.codes, &o.packed, &o.scales, &o.zeros, &o.outer, &o.macro}) {
    if (t->defined()) *t = t->cpu();
  }
  return o;
}

// Zeros of both signs among ordinary numbers, and values that round to them.
at::Tensor with_zeros(int64_t rows, int64_t cols) {
  const at::Tensor x = at::randn({rows, cols}, at::kFloat).to(at::kBFloat16);
  x.select(1, 0).fill_(-0.0), x.select(1, 1).fill_(0.0), x.select(1, 2).fill_(-1e-30), x.select(1, 3).fill_(1e-30);
  return x;
}

TEST_P(Decode, EveryNumberKeepsItsSign) {
  at::manual_seed(3);
  const at::Tensor x = with_zeros(48, 272).to(test_device());
  const double most = x.abs().max().item<double>();
  int negative_zeros = 0;
  for (const testing::NamedSpec& of : testing::operand_specs()) {
    SCOPED_TRACE(of.name);
    CopyRequest request;
    request.spec = of.spec, request.codes = true;
    const Operand o = of.rotates ? quantize(x, nullptr, &request).transposed : quantize(x, &request, nullptr).row;
    const at::Tensor found = dequantize(o).cpu();
    const Operand host = on_cpu(o);
    const QuantizedCopy copy = view(host);
    for (int64_t r = 0; r < o.rows; ++r) {
      for (int64_t c = 0; c < o.k; ++c) {
        const auto wanted = static_cast<float>(ref::dequantized(copy, o.rows, o.k, r, c));
        const float v = found.const_data_ptr<float>()[r * o.k + c];
        // Scales are rounded one after the other, and a product before its zero point is added.
        const bool shifted = of.spec.element == Element::uint4;
        ASSERT_NEAR(v, wanted, 4e-7 * (shifted ? most : std::abs(wanted))) << "row " << r << ", column " << c;
        ASSERT_TRUE(shifted || std::signbit(v) == std::signbit(wanted)) << "row " << r << ", column " << c << ": " << v << ", " << wanted;
        negative_zeros += v == 0 && std::signbit(v);
      }
    }
  }
  EXPECT_GT(negative_zeros, 1000);
}

TEST(GroupsOfRows, AreQuantisedOnDevicesAlone) {
  const std::vector<int32_t> offsets = {0, 128};
  const GroupedRows groups{{1, offsets.data()}};
  CopyRequest request;
  request.spec = testing::make_spec(Element::e4m3, Granularity::tensor, 0, ScaleFormat::fp32), request.codes = true;
  try {
    quantize(at::zeros({128, 32}), &request, nullptr, {}, false, nullptr, &groups);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "quantize: expected the matrix of 1 groups of rows on a CUDA device, found it on cpu");
  }
}

}  // namespace
}  // namespace halftone
