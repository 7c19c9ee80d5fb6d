#include "halftone/fused/embedding.h"

#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/embedding_ref.h"

namespace halftone {
namespace {

// Few rows, many tokens: every row occurs several times.
std::vector<int64_t> token_ids(int64_t n, int64_t vocab) {
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < n; ++t) ids.push_back(philox(philox_key(9, "ids"), static_cast<uint64_t>(t))[0] % vocab);
  return ids;
}

TEST(Embedding, GathersRows) {
  for (const int64_t cols : {1, 15, 64, 259}) {
    for (const DType table_type : kFloatTypes) {
      for (const DType type : kFloatTypes) {
        Matrix table(11, cols, table_type), out(50, cols, type);
        table.randomise(1);
        const auto ids = token_ids(50, 11);
        EmbeddingForward p;
        p.tokens = 50, p.vocab = 11, p.cols = cols, p.ids = ids.data(), p.table_dtype = table_type, p.table = table.data();
        p.table_stride = table.stride, p.dtype = type, p.out = out.data(), p.out_stride = out.stride;
        embedding_forward(p);
        out.expect_near(embedding_forward_ref(p), 0, 0, "gather");
        out.expect_gaps_untouched();
        const std::vector<int32_t> narrow(ids.begin(), ids.end());
        Matrix again(50, cols, type);
        p.id_dtype = DType::s32, p.ids = narrow.data(), p.out = again.data();
        embedding_forward(p);
        EXPECT_TRUE(again.same_bits(out));
      }
    }
  }
}

TEST(Embedding, BackwardAddsEveryTokenToItsRow) {
  for (const int64_t cols : {1, 15, 64, 259}) {
    for (const DType type : kFloatTypes) {
      Matrix dy(300, cols, type), grad(7, cols, DType::f32);
      dy.randomise(1);
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t c = 0; c < cols; ++c) grad.set(r, c, 0.25f);
      }
      const auto ids = token_ids(300, 7);
      EmbeddingBackward p;
      p.tokens = 300, p.vocab = 7, p.cols = cols, p.ids = ids.data(), p.dtype = type, p.dy = dy.data(), p.dy_stride = dy.stride;
      p.dtable = grad.f.data(), p.dtable_stride = grad.stride;
      auto expected = embedding_backward_ref(p);
      for (double& e : expected) e += 0.25;
      embedding_backward(p);
      grad.expect_near(expected, 1e-6, 1e-5, "scatter");
      grad.expect_gaps_untouched();
    }
  }
}

TEST(Embedding, BackwardSameBitsForEveryThreadCountAndInstructionSet) {
  const auto ids = token_ids(400, 5);
  expect_same_everywhere([&] {
    Matrix dy(400, 331, DType::bf16), grad(5, 331, DType::f32);
    dy.randomise(1);
    EmbeddingBackward p;
    p.tokens = 400, p.vocab = 5, p.cols = 331, p.ids = ids.data(), p.dy = dy.data(), p.dy_stride = dy.stride;
    p.dtable = grad.f.data(), p.dtable_stride = grad.stride;
    embedding_backward(p);
    return values(grad);
  });
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  Matrix table(4, 8, DType::f32), out(2, 8, DType::f32);
  for (const int64_t bad : {int64_t{-1}, int64_t{4}, int64_t{-100}}) {
    const int64_t ids[] = {0, bad};
    EmbeddingForward p;
    p.tokens = 2, p.vocab = 4, p.cols = 8, p.ids = ids, p.table = table.data(), p.dtype = DType::f32, p.out = out.data();
    EXPECT_THROW(embedding_forward(p), Error);
    EmbeddingBackward b;
    b.tokens = 2, b.vocab = 4, b.cols = 8, b.ids = ids, b.dy = out.data(), b.dtype = DType::f32, b.dtable = table.f.data();
    EXPECT_THROW(embedding_backward(b), Error);
  }
  EXPECT_NO_THROW(embedding_forward(EmbeddingForward{}));
  EXPECT_NO_THROW(embedding_backward(EmbeddingBackward{}));
}

}  // namespace
}  // namespace halftone
