#include "halftone/ops/batch_invariant.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstring>

#include "halftone/ops/attention.h"
#include "halftone/ops/linear.h"
#include "ops/test_device.h"

namespace halftone::batch_invariant_test {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

class BatchInvariantOn : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    set_batch_invariant(true);
  }
  void TearDown() override {
    set_batch_invariant(false);
    OnDevice::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(On, BatchInvariantOn, test_devices(), [](const auto& info) { return info.param; });

// Rows of one product equal those of products of any of them, and lie as near to float32 as the ordinary product's.
TEST_P(BatchInvariantOn, ProductsOfAnyRows) {
  struct Case {
    const char* recipe;
    at::ScalarType type;
    at::ScalarType out;
    bool bias;
    double error;  // relative to fp32, with its rounding of operands
  };
  for (const Case& c :
       {Case{"none", at::kBFloat16, at::kBFloat16, false, 5e-3}, Case{"none", at::kBFloat16, at::kBFloat16, true, 5e-3},
        Case{"none", at::kBFloat16, at::kFloat, false, 5e-3}, Case{"none", at::kFloat, at::kFloat, true, 1e-5},
        Case{"int8", at::kBFloat16, at::kBFloat16, false, 2e-2}, Case{"int4", at::kBFloat16, at::kBFloat16, false, 0.3},
        Case{"fp8_rowwise", at::kBFloat16, at::kBFloat16, false, 6e-2}, Case{"fp8_blockwise", at::kBFloat16, at::kBFloat16, true, 6e-2},
        Case{"mxfp8_e4m3", at::kBFloat16, at::kBFloat16, false, 6e-2}, Case{"mxfp8_e5m2", at::kFloat, at::kFloat, false, 0.12},
        Case{"mxfp4", at::kBFloat16, at::kBFloat16, false, 0.3}, Case{"mxint8", at::kBFloat16, at::kBFloat16, false, 2e-2}}) {
    SCOPED_TRACE(fmt::format("{} {} to {}{}", c.recipe, c10::toString(c.type), c10::toString(c.out), c.bias ? ", bias" : ""));
    at::NoGradGuard no_grad;
    at::manual_seed(3);
    constexpr int64_t kRows = 515, kK = 512, kN = 320;
    Weight w, bias;
    w.name = "w", bias.name = "b";
    w.value = at::randn({kN, kK}).div(std::sqrt(512.0)).to(c.type).to(test_device()),
    bias.value = at::randn({kN}).to(c.type).to(test_device());
    FusedLinears layer;
    layer.weights = {&w}, layer.recipe = *find_linear_recipe(c.recipe);
    if (c.bias) layer.biases = {&bias};
    const at::Tensor x = at::randn({kRows, kK}).to(c.type).to(test_device());
    const auto product = [&](int64_t first, int64_t rows) {
      LinearOptions options;
      options.out = c.out;
      return linear_call(x.narrow(0, first, rows), layer, options).y;
    };
    const at::Tensor all = product(0, kRows);
    at::Tensor exact = at::matmul(x.to(at::kDouble), w.value.to(at::kDouble).t());
    if (c.bias) exact = exact + bias.value.to(at::kDouble);
    EXPECT_LT(((all.to(at::kDouble) - exact).norm() / exact.norm()).item<double>(), c.error);
    for (const auto& [first, rows] :
         {std::pair<int64_t, int64_t>{0, 1}, {514, 1}, {3, 7}, {128, 128}, {1, 129}, {200, 300}, {0, 512}, {256, 259}})
      EXPECT_TRUE(same_bits(all.narrow(0, first, rows), product(first, rows))) << rows << " rows from " << first;
  }
}

// Attention over a row, over the same row packed behind another document, and over a cache in pieces.
TEST_P(BatchInvariantOn, AttentionOfAnyPieces) {
  for (const int64_t window : {0, 100}) {
    for (const int64_t dim : {64, 128}) {
      SCOPED_TRACE(fmt::format("window {}, heads of {}", window, dim));
      at::NoGradGuard no_grad;
      at::manual_seed(4);
      constexpr int64_t kSeq = 600, kBefore = 77;
      AttentionArgs a;
      a.batch = 1, a.seq = kSeq, a.heads = 4, a.kv_heads = 2, a.head_dim = dim, a.scale = 1 / std::sqrt(static_cast<double>(dim));
      a.window = window;
      const auto options = at::TensorOptions().device(test_device());
      const at::Tensor angle = at::rand({kSeq + kBefore, dim / 2}, options.dtype(at::kFloat));
      a.cos = angle.cos(), a.sin = angle.sin();
      const at::Tensor qkv = at::randn({kSeq + kBefore, 8 * dim}, options.dtype(at::kBFloat16));
      const at::Tensor row = qkv.narrow(0, kBefore, kSeq);
      const at::Tensor expected = causal_attention(row.clone(), a).value;
      AttentionArgs packed = a;
      packed.seq = kSeq + kBefore;
      at::Tensor start = at::zeros({1, packed.seq}, at::kInt);
      start.narrow(1, kBefore, kSeq).fill_(kBefore);
      packed.documents = documents_of(start, test_device());
      packed.positions = (at::arange(packed.seq, at::kInt) - start.view(-1)).to(test_device());
      EXPECT_TRUE(same_bits(expected, causal_attention(qkv.clone(), packed).value.narrow(0, kBefore, kSeq))) << "packed";
      for (const int64_t piece : {1, 3, 64, 250}) {
        KvCache cache{at::empty({1, kSeq + 5, 2 * dim}, row.options()), at::empty({1, kSeq + 5, 2 * dim}, row.options())};
        for (int64_t at = 0; at < kSeq; at += piece) {
          AttentionArgs part = a;
          part.seq = std::min(piece, kSeq - at);
          const at::Tensor out = causal_attention_cached(row.narrow(0, at, part.seq).clone(), part, cache);
          ASSERT_TRUE(same_bits(expected.narrow(0, at, part.seq), out)) << part.seq << " from " << at;
        }
      }
    }
  }
}

TEST_P(BatchInvariantOn, ElementwiseFunctionsOfAnyPlace) {
  const at::Tensor x = at::randn({1003}, at::TensorOptions().device(test_device())).mul(5), y = at::randn({1003}).to(test_device());
  const at::Tensor s = even_sigmoid(x), e = even_exp(x), l = even_logaddexp(x, y);
  EXPECT_TRUE(at::allclose(s, at::sigmoid(x), 1e-6, 1e-7) && at::allclose(e, at::exp(x), 1e-6) &&
              at::allclose(l, at::logaddexp(x, y), 1e-6, 1e-6));
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {5, 37}, {999, 4}}) {
    const at::Tensor a = x.narrow(0, first, count), b = y.narrow(0, first, count);
    EXPECT_TRUE(same_bits(s.narrow(0, first, count), even_sigmoid(a)));
    EXPECT_TRUE(same_bits(e.narrow(0, first, count), even_exp(a)));
    EXPECT_TRUE(same_bits(l.narrow(0, first, count), even_logaddexp(a, b)));
  }
}

}  // namespace
}  // namespace halftone::batch_invariant_test
