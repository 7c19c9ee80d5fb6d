// Properties of numerics.md 13.1 with the shapes, data and bounds of their sources.
#include <gtest/gtest.h>

#include "halftone/formats/hadamard.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/stochastic.h"
#include "halftone/quantize/operand.h"
#include "quantize/operand_data.h"

namespace halftone::operand_properties_test {
namespace {

using namespace testing;
using E = Element;
using G = Granularity;
using S = ScaleFormat;
using M = ScaleMode;

constexpr int64_t kDraws = 100'000, kValues = 32;

TEST(OperandProperties, MeanOfStochasticInt8) {
  const auto values = data_r(kValues, 1234);
  std::vector<float> x;
  for (int64_t i = 0; i < kDraws; ++i) x.insert(x.end(), values.begin(), values.end());
  OperandSpec s = make_spec(E::int8, G::row, 0, S::fp32);
  s.stochastic = true;
  const Qdq q(x, kDraws, kValues, s, draws(1));
  for (int64_t i = 0; i < kValues; ++i) {
    double mean = 0;
    for (int64_t d = 0; d < kDraws; ++d) mean += q.values[static_cast<size_t>(d * kValues + i)] / kDraws;
    const double exact = values[static_cast<size_t>(i)];
    EXPECT_NEAR(mean, exact, 1e-4 + 1e-4 * std::fabs(exact)) << i;
  }
}

TEST(OperandProperties, MeanOfStochasticBf16) {
  const Rounding how = draws(1);
  for (int64_t i = 0; i < kValues; ++i) {
    const float x = 100 * unit_float(philox(philox_key(1234, "x"), static_cast<uint64_t>(i))[0]);
    double mean = 0;
    for (int64_t d = 0; d < kDraws; ++d)
      mean += static_cast<double>(to_float(std::bit_cast<bf16>(bf16_bits_sr(x, sr_bits16(how, d * kValues + i))))) / kDraws;
    EXPECT_NEAR(mean, x, 3e-5 * x) << i;
  }
}

// x * inv_macro / inv_macro is x again, and the bytes are those of 6 / amax, truncated after 8 mantissa bits.
TEST(OperandProperties, MacroBlockRoundTrip) {
  constexpr int64_t kRows = 513, kCols = 385, kBlocks = 4;
  for (const DType type : {DType::bf16, DType::f32}) {
    std::vector<float> x = data_r(kRows * kCols, 1234);
    if (type == DType::f32) {
      for (size_t i = 0; i < x.size(); ++i) x[i] *= 1 + 1e-4f * static_cast<float>(i % 97);
    }
    std::vector<std::byte> source = elements(x, type);
    QuantizeOperand p;
    p.x = source.data(), p.type = type, p.rows = kRows, p.cols = p.ld = kCols, p.want_row = true;
    p.row.spec = make_spec(E::e2m1, G::block, 32, S::e8m0, M::adaptive);
    p.row.spec.two_level = TwoLevel::macro;
    CopyBuffers buffers(p.row, kRows, kCols);
    quantize_operand(p);
    const auto* bytes = buffers.macro.as<uint8_t>();
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t b = 0; b < kBlocks; ++b) {
        double amax = 0;
        for (int64_t c = b * 128; c < std::min((b + 1) * 128, kCols); ++c)
          amax = std::max<double>(amax, std::fabs(x[static_cast<size_t>(r * kCols + c)]));
        const double t = std::max(amax, 1e-12), factor = 6 / t, mantissa = factor / std::exp2(std::floor(std::log2(factor)));
        const uint8_t byte = bytes[r * kBlocks + b];
        ASSERT_EQ(byte, static_cast<int>((mantissa - 1) * 256)) << r << " " << b;
        const float inv = inv_macro(byte);
        for (int64_t c = b * 128; c < std::min((b + 1) * 128, kCols); ++c) {
          const float v = x[static_cast<size_t>(r * kCols + c)], scaled = v * inv;
          ASSERT_NEAR(scaled / inv, v, 1e-6 * std::fabs(v));
          ASSERT_NEAR(to_float(bf16(to_float(bf16(scaled)) / inv)), v, 1e-3 + 1e-2 * std::fabs(v));
        }
      }
    }
  }
}

// (H dY)^T (H X) against dY^T X, 1024 x 1024 in fp32: 64 rows of the result.
TEST(OperandProperties, RotatedProductIsTheProduct) {
  constexpr int64_t kN = 1024, kSampled = 64;
  const auto check_width = [&](auto width, const RotationSigns& signs) {
    constexpr int kWidth = width;
    std::vector<float> dy = data_r(kN * kN, 1236), x = data_r(kN * kN, 1234);
    const auto product = [&] {
      std::vector<double> out(static_cast<size_t>(kSampled * kN));
      for (int64_t t = 0; t < kN; ++t) {
        for (int64_t i = 0; i < kSampled; ++i) {
          const double a = dy[static_cast<size_t>(t * kN + i * (kN / kSampled))];
          for (int64_t j = 0; j < kN; ++j) out[static_cast<size_t>(i * kN + j)] += a * x[static_cast<size_t>(t * kN + j)];
        }
      }
      return out;
    };
    const auto plain = product();
    for (std::vector<float>* m : {&dy, &x}) {
      for (int64_t t = 0; t < kN; t += kWidth) {
        for (int64_t c = 0; c < kN; ++c) {
          float v[kWidth];
          for (int64_t k = 0; k < kWidth; ++k) v[k] = (*m)[static_cast<size_t>((t + k) * kN + c)];
          hadamard(v, signs);
          for (int64_t k = 0; k < kWidth; ++k) (*m)[static_cast<size_t>((t + k) * kN + c)] = v[k];
        }
      }
    }
    const auto rotated = product();
    double error = 0, size = 0;
    for (size_t i = 0; i < plain.size(); ++i) error += (rotated[i] - plain[i]) * (rotated[i] - plain[i]), size += plain[i] * plain[i];
    EXPECT_LE(std::sqrt(error / size), 1e-5) << kWidth;
  };
  check_width(std::integral_constant<int, 16>{}, kFixedSigns16);
  check_width(std::integral_constant<int, 32>{}, 0xB5297A4Du);
  check_width(std::integral_constant<int, 128>{}, RotationSigns({0xB5297A4Du, 0x68E31DA4u, 0x1B56C4E9u, 0x9C4A30F7u}));
}

}  // namespace
}  // namespace halftone::operand_properties_test
