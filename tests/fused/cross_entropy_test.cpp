#include "halftone/fused/cross_entropy.h"

#include "fused/support.h"
#include "halftone/base/error.h"
#include "halftone/fused/cross_entropy_ref.h"

namespace halftone {
namespace {

std::vector<int64_t> labels_for(int64_t rows, int64_t vocab) {
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < rows; ++r) labels.push_back(r % 5 == 3 ? kIgnoredLabel : (r * 7 + 3) % vocab);
  return labels;
}

CrossEntropy parameters(Matrix& z, Matrix& dz, const std::vector<int64_t>& labels, std::vector<float>& loss, std::vector<float>& lse) {
  CrossEntropy p;
  p.rows = z.rows, p.vocab = z.cols, p.dtype = z.type, p.logits = z.data(), p.logits_stride = z.stride, p.labels = labels.data();
  p.grad_scale = 0.125f, p.dlogits_dtype = dz.type, p.dlogits = dz.data(), p.dlogits_stride = dz.stride;
  p.loss = loss.data(), p.lse = lse.data();
  return p;
}

TEST(CrossEntropy, MatchesReference) {
  for (const int64_t vocab : {1, 2, 17, 64, 100, 1000, 4099}) {
    for (const DType type : kFloatTypes) {
      for (const DType grad_type : kFloatTypes) {
        for (const float z_loss : {0.0f, 0.01f}) {
          Matrix z(13, vocab, type), dz(13, vocab, grad_type, 1);
          z.randomise(1, 20.0f);
          const auto labels = labels_for(13, vocab);
          std::vector<float> loss(13), lse(13);
          CrossEntropy p = parameters(z, dz, labels, loss, lse);
          p.z_loss = z_loss;
          const auto expected = cross_entropy_ref(p);
          const auto result = cross_entropy(p);
          double sum = 0;
          for (size_t r = 0; r < 13; ++r) {
            ASSERT_NEAR(loss[r], expected.loss[r], 1e-6 * std::abs(expected.lse[r]) + 1e-6);
            ASSERT_NEAR(lse[r], expected.lse[r], 1e-6 * std::abs(expected.lse[r]) + 1e-6);
            sum += loss[r];
          }
          EXPECT_EQ(result.loss_sum, sum);
          EXPECT_EQ(result.valid, 11);  // rows 3 and 8 are ignored
          dz.expect_near(expected.dlogits, 4e-6, 1e-8, fmt::format("V {} {} {} {}", vocab, name_of(type), name_of(grad_type), z_loss));
          dz.expect_gaps_untouched();
        }
      }
    }
  }
}

TEST(CrossEntropy, InPlaceAndEvaluationAgreeWithTheSeparateBuffer) {
  Matrix z(9, 201, DType::bf16), dz(9, 201, DType::bf16);
  z.randomise(2, 5.0f);
  const auto labels = labels_for(9, 201);
  std::vector<float> loss(9), lse(9), loss2(9), lse2(9);
  CrossEntropy p = parameters(z, dz, labels, loss, lse);
  const auto first = cross_entropy(p);
  p.dlogits = nullptr, p.loss = nullptr, p.lse = lse2.data();
  EXPECT_EQ(cross_entropy(p).loss_sum, first.loss_sum);
  EXPECT_EQ(lse2, lse);
  const std::vector<int32_t> narrow(labels.begin(), labels.end());
  p.label_dtype = DType::s32, p.labels = narrow.data(), p.loss = loss2.data(), p.dlogits = z.data(), p.dlogits_stride = z.stride;
  EXPECT_EQ(cross_entropy(p).loss_sum, first.loss_sum);
  EXPECT_EQ(loss2, loss);
  EXPECT_EQ(values(z), values(dz));
}

TEST(CrossEntropy, PartsOfAVocabularyMakeTheWhole) {
  for (const float z_loss : {0.0f, 0.01f}) {
    Matrix z(9, 201, DType::f32), dz(9, 201, DType::f32);
    z.randomise(4, 40.0f);
    const auto labels = labels_for(9, 201);
    std::vector<float> loss(9), lse(9);
    CrossEntropy p = parameters(z, dz, labels, loss, lse);
    p.z_loss = z_loss;
    const CrossEntropyRef expected = cross_entropy_ref(p);
    p.loss = nullptr, p.whole_vocab = 201;
    std::vector<double> sums(9), targets(9);
    for (const bool gradient : {false, true}) {
      for (const auto& [first, columns] : {std::pair<int64_t, int64_t>(0, 67), {67, 100}, {167, 34}}) {
        std::vector<float> own(9), target(9);
        p.first_column = first, p.vocab = columns, p.logits = static_cast<float*>(z.data()) + first;
        p.lse = own.data(), p.target = target.data(), p.whole_lse = gradient ? lse.data() : nullptr;
        p.dlogits = gradient ? static_cast<float*>(dz.data()) + first : nullptr;
        cross_entropy(p);
        for (size_t r = 0; r < 9 && !gradient; ++r) sums[r] += std::exp(static_cast<double>(own[r])), targets[r] += target[r];
      }
      for (size_t r = 0; r < 9 && !gradient; ++r) lse[r] = static_cast<float>(std::log(sums[r]));
    }
    for (size_t r = 0; r < 9; ++r) {
      if (labels[r] == kIgnoredLabel) continue;
      EXPECT_NEAR(lse[r], expected.lse[r], 1e-6 * std::abs(expected.lse[r]) + 1e-6);
      EXPECT_NEAR(lse[r] - targets[r], expected.loss[r], 1e-5);
    }
    dz.expect_near(expected.dlogits, 1e-5, 1e-8, "gradient");
  }
}

TEST(CrossEntropy, HugeAndMaskedLogits) {
  Matrix z(3, 40, DType::f32), dz(3, 40, DType::f32);
  for (int64_t v = 0; v < 40; ++v) z.set(0, v, -INFINITY), z.set(1, v, -3e38f), z.set(2, v, 1e4f);
  z.set(0, 5, 2), z.set(1, 6, 3e38f), z.set(2, 39, std::bit_cast<float>(0x7FC00001u));
  const std::vector<int64_t> labels = {5, 6, 0};
  std::vector<float> loss(3), lse(3);
  cross_entropy(parameters(z, dz, labels, loss, lse));
  EXPECT_EQ(loss[0], 0);
  EXPECT_EQ(dz.at(0, 5), 0);
  EXPECT_EQ(dz.at(0, 0), 0);
  EXPECT_EQ(loss[1], 0);
  EXPECT_TRUE(std::isnan(loss[2]));
  EXPECT_TRUE(std::isnan(dz.at(2, 0)));
}

TEST(CrossEntropy, SameBitsForEveryThreadCountAndInstructionSet) {
  const auto labels = labels_for(33, 1003);
  for (const DType type : kFloatTypes) {
    expect_same_everywhere([&] {
      Matrix z(33, 1003, type), dz(33, 1003, type);
      z.randomise(3, 9.0f);
      std::vector<float> loss(33), lse(33);
      cross_entropy(parameters(z, dz, labels, loss, lse));
      std::vector<float> all = values(dz);
      append(all, loss), append(all, lse);
      return all;
    });
  }
}

TEST(CrossEntropy, RefusesLabelsOutsideTheVocabulary) {
  Matrix z(2, 8, DType::f32), dz(2, 8, DType::f32);
  std::vector<float> loss(2), lse(2);
  for (const int64_t bad : {8, -1, -101}) {
    const std::vector<int64_t> labels = {0, bad};
    EXPECT_THROW(cross_entropy(parameters(z, dz, labels, loss, lse)), Error);
  }
  EXPECT_EQ(cross_entropy(CrossEntropy{}).valid, 0);
}

}  // namespace
}  // namespace halftone
