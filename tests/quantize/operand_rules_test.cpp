// Contracts of quantised operands: special values, poison, padding, stochastic rounding (numerics.md 2.2, 3.2, 4, 13).
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/hadamard.h"
#include "halftone/quantize/operand.h"
#include "quantize/operand_data.h"

namespace halftone {
namespace {

using namespace testing;
using E = Element;
using G = Granularity;
using S = ScaleFormat;
using M = ScaleMode;

// Codes and byte scales of one row of fp32 values.
struct Row {
  std::vector<uint8_t> codes, scales;
};
Row quantized_row(const std::vector<float>& x, const OperandSpec& spec) {
  Row out{std::vector<uint8_t>(x.size()), std::vector<uint8_t>(x.size())};
  QuantizeOperand p;
  p.x = x.data(), p.type = DType::f32, p.rows = 1, p.cols = p.ld = static_cast<int64_t>(x.size()), p.want_row = true;
  p.row.spec = spec, p.row.codes = out.codes.data(), p.row.scales = out.scales.data();
  quantize_operand(p);
  return out;
}

TEST(OperandRules, ByteContractOfE4m3Blocks) {
  const auto expect = [](float fill, float first, int floor, int rceil, int floor_code, int rceil_code, int first_code = -1) {
    for (const bool up : {false, true}) {
      std::vector<float> x(32, fill);
      x[5] = first;
      const Row q = quantized_row(x, make_spec(E::e4m3, G::block, 32, S::e8m0, up ? M::rceil : M::floor));
      EXPECT_EQ(q.scales[0], up ? rceil : floor) << fill << " " << first;
      for (size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(q.codes[i], i == 5 && first_code >= 0 ? first_code : up ? rceil_code : floor_code) << fill << " " << first << " " << i;
      }
    }
  };
  const float max = std::numeric_limits<float>::max(), bf16_max = std::bit_cast<float>(0x7F7F0000u);
  expect(0, 0, 0, 0, 0, 0);
  expect(0x1p-126f, 0x1p-126f, 0, 0, 0x40, 0x40);
  expect(448, 448, 127, 127, 0x7E, 0x7E);
  expect(480, 480, 127, 128, 0x7E, 0x77);
  expect(max, max, 246, 247, 0x7E, 0x78);
  expect(bf16_max, bf16_max, 246, 247, 0x7E, 0x78);
  for (const float bad : {INFINITY, -INFINITY, NAN}) expect(1, bad, 255, 255, 0x7F, 0x7F);
  expect(1, -0x1p-149f, 119, 119, 0x78, 0x78, 0x80);
  const float above = std::bit_cast<float>(0x40600001u), below = std::bit_cast<float>(0x43FFFFFFu);
  expect(above, above, 120, 121, 0x7E, 0x76);
  expect(below, below, 127, 128, 0x7E, 0x78);
}

TEST(OperandRules, SaturationAndScaleOfE2m1Modes) {
  // amax in the gap (6, 7): even keeps the scale 1 and saturates, rceil doubles it, uos keeps it up to 7.25.
  std::vector<float> x(32, 6.5f);
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::even)).scales[0], 127);
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::even)).codes[0], 7);
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::rceil)).scales[0], 128);
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::rceil)).codes[0], 5);  // 3.25 -> 3
  x[0] = 7.25f;
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::uos)).scales[0], 127);
  x[0] = std::nextafter(7.25f, 8.0f);
  EXPECT_EQ(quantized_row(x, make_spec(E::e2m1, G::block, 32, S::e8m0, M::uos)).scales[0], 128);
}

TEST(OperandRules, Nvfp4OfConstant5000AndZeros) {
  for (const Fp4Chain chain : {Fp4Chain::alto, Fp4Chain::torchao}) {
    for (const G g : {G::block, G::tile}) {
      OperandSpec s = make_spec(E::e2m1, g, 16, S::e4m3);
      s.two_level = TwoLevel::tensor, s.chain = chain;
      const float value = to_float(bf16(5000.0f));
      const Qdq constant(std::vector<float>(48 * 48, value), 48, 48, s), zero(std::vector<float>(48 * 48, 0.0f), 48, 48, s);
      for (const double v : constant.values) ASSERT_NEAR(v / value, 1, 1e-6);
      for (const uint8_t c : constant.codes) ASSERT_EQ(c, 7);
      for (const uint8_t c : zero.codes) ASSERT_EQ(c, 0);
      for (const double v : zero.values) ASSERT_EQ(v, 0);
      ASSERT_EQ(zero.scales[0], chain == Fp4Chain::alto ? 0x08 : 0x00);
    }
  }
}

// Four over six (3.4.1) in real arithmetic: no block has an error that is noticeably above that of the other scale, and the tensor's
// squared error is below that of amax / 6 alone.
TEST(OperandRules, FourOverSixTakesTheScaleWithTheSmallerError) {
  constexpr double kGrid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int64_t rows = 64, cols = 512;
  for (const ScaleChoice choice : {ScaleChoice::squared, ScaleChoice::absolute, ScaleChoice::largest}) {
    for (const auto& [chain, format] : {std::pair{Fp4Chain::alto, S::e4m3}, {Fp4Chain::torchao, S::e4m3}, {Fp4Chain::alto, S::ue5m3}}) {
      for (const bool outliers : {false, true}) {
        const std::vector<float> x = outliers ? data_o(rows * cols, 3) : data_r(rows * cols, 3);
        OperandSpec s = make_spec(E::e2m1, G::block, 16, format);
        s.two_level = TwoLevel::tensor, s.chain = chain;
        const double plain = Qdq(x, rows, cols, s).sqnr(x);
        s.choice = choice;
        const Qdq q(x, rows, cols, s);
        uint32_t all = 0;
        for (const float v : x) all = std::max(all, std::bit_cast<uint32_t>(v) & 0x7FFFFFFFu);
        const double outer = fp4_outer(chain, fp4_range(s), TwoLevel::tensor, all).scale;
        int fours = 0;
        for (size_t b = 0; b < x.size() / 16; ++b) {
          uint32_t amax = 0;
          for (size_t i = 0; i < 16; ++i) amax = std::max(amax, std::bit_cast<uint32_t>(x[16 * b + i]) & 0x7FFFFFFFu);
          const double target = std::max(std::bit_cast<float>(amax) / outer / 6, format == S::e4m3 ? 0x1p-6 : 0x1p-17);
          double errors[2] = {};
          const uint8_t bytes[2] = {encode_block_scale(format, static_cast<float>(target)),
                                    encode_block_scale(format, static_cast<float>(1.5 * target))};
          for (const int four : {0, 1}) {
            const double scale = decode_block_scale(format, bytes[four]) * outer;
            for (size_t i = 0; i < 16; ++i) {
              double error = std::numeric_limits<double>::infinity();
              for (const double v : kGrid) error = std::min(error, std::fabs(std::fabs(double{x[16 * b + i]}) - v * scale));
              double& sum = errors[four];
              sum = choice == ScaleChoice::squared    ? sum + error * error
                    : choice == ScaleChoice::absolute ? sum + error
                                                      : std::max(sum, error);
            }
          }
          const bool four = q.scales[b] == bytes[1];
          ASSERT_TRUE(four || q.scales[b] == bytes[0]) << int{q.scales[b]} << " " << int{bytes[0]} << " " << int{bytes[1]};
          ASSERT_LE(errors[four], 1.03 * errors[!four]) << b;
          fours += four;
        }
        EXPECT_GT(fours, rows * cols / 16 / 5);
        EXPECT_LT(fours, rows * cols / 16 * 4 / 5);
        if (choice == ScaleChoice::squared) {
          EXPECT_GT(q.sqnr(x), plain + 0.3);
        }
      }
    }
  }
}

// The edges of four over six: zero blocks, scales that underflow, blocks beyond a clamped scale, ties.
TEST(OperandRules, FourOverSixAtTheEdges) {
  OperandSpec s = make_spec(E::e2m1, G::block, 16, S::e4m3);
  s.two_level = TwoLevel::tensor, s.choice = ScaleChoice::squared;
  const auto first = [&](float value, float fill, float whole) {  // scale of a block, beside one with `whole`
    std::vector<float> x(32, fill);
    x[0] = value, x[31] = whole;
    return quantized_row(x, s).scales[0];
  };
  const auto value = [](uint8_t byte) { return decode(Float::e4m3, byte); };
  for (const Fp4Chain chain : {Fp4Chain::alto, Fp4Chain::torchao}) {
    s.chain = chain;
    EXPECT_EQ(value(first(6, 0, 6)), 256);    // exact under both scales: amax / 6
    EXPECT_EQ(value(first(6, 4, 6)), 256);    // exact under amax / 6 alone
    EXPECT_EQ(value(first(6, 4.5, 6)), 384);  // 6 and 4.5 are 4 and 3 times 1.5
    EXPECT_EQ(value(first(0, 0, 6)), chain == Fp4Chain::alto ? 0x1p-6f : 0);
    EXPECT_EQ(value(first(1e-37f, 1e-37f, 3e38f)), chain == Fp4Chain::alto ? 0x1p-6f : 0);
    const auto x = first(std::numeric_limits<float>::infinity(), 1, 1);
    EXPECT_TRUE(std::isnan(value(x)));
  }
  // Chain torchao: amax / 6 is 0.4 of the smallest scale, amax / 4 0.6.
  EXPECT_EQ(value(first(6 * 0x1p-9f * 0.4f, 0, 6 * 256)), 0x1p-9f);
  // Without an outer scale 448 is the largest: both scales are equal, also for what they clip.
  s.chain = Fp4Chain::alto, s.two_level = TwoLevel::none;
  EXPECT_EQ(value(first(1e6f, 1, 1)), 448);
  EXPECT_EQ(value(first(2600, 0, 1)), 448);  // 433.3 rounds to 448, and so does 650
}

// Blocks of 1e-37, one 3e38 beside zeros, and Gaussian blocks, in 1 to 1,100 rows: the instruction sets against the scalar reference.
TEST(OperandRules, ChoicesAndIntegerBlocksOnEdgeDataInAnyNumberOfRows) {
  OperandSpec nvfp4 = make_spec(E::e2m1, G::block, 16, S::e4m3), nvint4 = make_spec(E::int4, G::block, 16, S::e4m3);
  nvfp4.two_level = nvint4.two_level = TwoLevel::tensor, nvfp4.choice = ScaleChoice::squared;
  OperandSpec torchao = nvfp4, square = nvfp4;
  torchao.chain = Fp4Chain::torchao, square.granularity = G::tile;
  const int64_t cols = 80;
  for (const OperandSpec& spec : {nvfp4, torchao, square, nvint4, make_spec(E::int8, G::block, 32, S::e8m0, M::rceil)}) {
    for (const int64_t rows : {1, 2, 15, 16, 17, 33, 127, 129, 640, 1099, 1100}) {
      std::vector<float> x = data_r(rows * cols, 5);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < 16; ++c) x[static_cast<size_t>(r * cols + c)] = c % 3 == 0 ? -1e-37f : 1e-37f;
        for (int64_t c = 16; c < 32; ++c) x[static_cast<size_t>(r * cols + c)] = 0;
      }
      for (const float top : {1.0f, 3e38f}) {
        x[static_cast<size_t>(rows / 2 * cols + 20)] = top;
        std::vector<std::vector<uint8_t>> found;
        for (const bool reference : {true, false}) {
          for (const Isa isa : reference ? std::vector<Isa>{Isa::ref} : isas()) {
            QuantizeOperand p;
            p.x = x.data(), p.type = DType::f32, p.rows = rows, p.cols = p.ld = cols, p.want_row = p.want_transposed = true;
            p.row.spec = p.transposed.spec = spec;
            const auto size = static_cast<size_t>(rows * cols);
            std::vector<uint8_t> bytes(4 * size);
            p.row.codes = bytes.data(), p.row.scales = bytes.data() + size;
            p.transposed.codes = bytes.data() + 2 * size, p.transposed.scales = bytes.data() + 3 * size;
            quantize_operand(p, isa);
            found.push_back(std::move(bytes));
          }
        }
        for (size_t i = 1; i < found.size(); ++i) ASSERT_TRUE(found[i] == found[0]) << rows << " rows, beside " << top;
      }
    }
  }
}

// MXINT8 and NVINT4 (3.2, 3.4.2): symmetric codes, ceil(log2(amax / 127)), and amax at 7.
TEST(OperandRules, IntegerBlocks) {
  const auto int8 = [](float amax, M mode) { return quantized_row({amax, -amax, 0, 0}, make_spec(E::int8, G::block, 32, S::e8m0, mode)); };
  for (const int e : {-100, -3, 0, 60}) {
    const float top = std::ldexp(127.0f, e), beyond = std::nextafter(std::nextafter(top, INFINITY), INFINITY);
    EXPECT_EQ(int8(top, M::rceil).scales[0], 127 + e);
    EXPECT_EQ(int8(top, M::rceil).codes[0], 127);
    EXPECT_EQ(int8(top, M::rceil).codes[1], static_cast<uint8_t>(-127));
    EXPECT_EQ(int8(beyond, M::rceil).scales[0], 128 + e);
    EXPECT_EQ(int8(beyond, M::floor).scales[0], 127 + e);
    EXPECT_EQ(int8(std::ldexp(127.75f, e), M::floor).codes[1], static_cast<uint8_t>(-127));  // never -128
    EXPECT_EQ(int8(std::ldexp(127.25f, e), M::even).scales[0], 127 + e);
    EXPECT_EQ(int8(std::ldexp(127.5f, e), M::even).scales[0], 128 + e);
  }
  EXPECT_EQ(int8(0, M::rceil).scales[0], 0);
  EXPECT_EQ(int8(1e-37f, M::rceil).scales[0], 0);  // 2^-127 at least
  EXPECT_EQ(int8(1e-37f, M::rceil).codes[0], 17);  // 1e-37 * 2^127
  EXPECT_EQ(int8(3e38f, M::rceil).scales[0], 127 + 121);
  EXPECT_EQ(int8(INFINITY, M::rceil).scales[0], 255);

  OperandSpec s = make_spec(E::int4, G::block, 16, S::e4m3);
  s.two_level = TwoLevel::tensor;
  std::vector<float> x(32, 0.0f);
  x[0] = 7, x[1] = -7, x[2] = 3.4f, x[16] = -1e-37f;
  const Row q = quantized_row(x, s);
  EXPECT_EQ(decode(Float::e4m3, q.scales[0]), 448);
  EXPECT_EQ(std::vector<int>({q.codes[0], q.codes[1], q.codes[2]}), std::vector<int>({7, 0xF9, 3}));
  EXPECT_EQ(decode(Float::e4m3, q.scales[1]), 0x1p-6f);
  EXPECT_EQ(q.codes[16], 0);
  s.two_level = TwoLevel::none;  // a scale of 1.0 for 7.2: 7.2 / 7 is below the midpoint 1.0625
  EXPECT_EQ(quantized_row({-7.2f, 7.2f}, s).scales[0], encode(Float::e4m3, 1.0f));
  EXPECT_EQ(quantized_row({-7.4f, 7.4f}, s).codes[0], 0xF9);  // -7, never -8
}

// One NaN or infinity: NaN in every element of its group, no other element changed (2.2).
TEST(OperandRules, PoisonStaysInItsGroup) {
  const int64_t rows = 160, cols = 192, bad_row = 37, bad_col = 141;
  int n = 0;
  for (const NamedSpec& named : operand_specs()) {
    if (named.rotates) continue;
    auto x = data_r(rows * cols, 5);
    const Qdq clean(x, rows, cols, named.spec);
    for (const float bad : {NAN, n++ % 2 == 0 ? INFINITY : -INFINITY}) {
      x[bad_row * cols + bad_col] = bad;
      const Qdq q(x, rows, cols, named.spec);
      const BlockShape b = block_shape(named.spec, rows, cols);
      const bool macro = named.spec.two_level == TwoLevel::macro, tile = named.spec.granularity == G::tile;
      const int64_t high = macro && tile ? 128 : b.rows, wide = macro ? 128 : b.cols;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t r = i / cols, c = i % cols;
        const auto at = static_cast<size_t>(i);
        if (named.spec.two_level == TwoLevel::tensor || (r / high == bad_row / high && c / wide == bad_col / wide)) {
          ASSERT_TRUE(std::isnan(q.values[at])) << named.name << " " << r << " " << c;
          const int poison = is_float(named.spec.element) ? poison_code(float_of(named.spec.element)) : 0;
          ASSERT_EQ(q.codes[at], poison) << named.name;
        } else {
          ASSERT_EQ(q.values[at], clean.values[at]) << named.name << " " << r << " " << c;
        }
      }
    }
  }
}

TEST(OperandRules, ExtremeValuesStayFinite) {
  for (const NamedSpec& named : operand_specs()) {
    if (named.rotates) continue;
    for (const float size : {1e-30f, 1e30f}) {
      auto x = data_r(64 * 64, 6);
      for (float& v : x) v = to_float(bf16(v * size));
      for (const double v : Qdq(x, 64, 64, named.spec).values) ASSERT_TRUE(std::isfinite(v)) << named.name << " " << size;
    }
    std::vector<float> spike(64 * 64, 0.0f);
    spike[77] = 3;
    for (const double v : Qdq(spike, 64, 64, named.spec).values) ASSERT_TRUE(std::isfinite(v)) << named.name;
  }
}

TEST(OperandRules, TransposedCopyOfTilesIsTheTranspose) {
  const auto x = data_r(200 * 136, 7);
  for (const NamedSpec& named : operand_specs()) {
    if (named.rotates || (named.spec.granularity != G::tile && named.spec.granularity != G::tensor)) continue;
    const Qdq row(x, 200, 136, named.spec), turned(x, 200, 136, named.spec, {}, true);
    for (int64_t r = 0; r < 200; ++r)
      for (int64_t c = 0; c < 136; ++c) {
        ASSERT_EQ(row.codes[static_cast<size_t>(r * 136 + c)], turned.codes[static_cast<size_t>(c * 200 + r)]) << named.name;
        ASSERT_EQ(row.values[static_cast<size_t>(r * 136 + c)], turned.values[static_cast<size_t>(c * 200 + r)]) << named.name;
      }
  }
}

// Appended zero rows and columns change no other code (section 8: padding must not change any real bit).
TEST(OperandRules, PaddingChangesNothing) {
  const int64_t rows = 70, cols = 50;
  const auto x = data_r(rows * cols, 8);
  for (const NamedSpec& named : operand_specs()) {
    if (named.spec.element == E::ternary || named.spec.element == E::uint4 || named.spec.clip == Clip::dynamic) continue;
    const auto source = elements(x, DType::bf16);
    const auto run = [&](int64_t length) {
      QuantizeOperand p;
      p.x = source.data(), p.rows = rows, p.cols = cols, p.ld = cols, p.want_transposed = true;
      p.transposed.spec = named.spec, p.transposed.length = length, p.transposed.signs = 0x1234;
      CopyBuffers out(p.transposed, cols, rows);
      quantize_operand(p);
      std::vector<uint8_t> codes(out.codes.as<uint8_t>(), out.codes.as<uint8_t>() + cols * out.C);
      return std::pair(codes, out.C);
    };
    const auto [codes, C] = run(0);
    const auto [padded, longer] = run(128);
    ASSERT_EQ(longer, 128);
    for (int64_t r = 0; r < cols; ++r) {
      for (int64_t c = 0; c < longer; ++c) {
        const uint8_t q = padded[static_cast<size_t>(r * longer + c)];
        ASSERT_EQ(q, c < C ? codes[static_cast<size_t>(r * C + c)] : 0) << named.name << " " << r << " " << c;
      }
    }
  }
}

// Shards along rows and columns use the draws of the full tensor (4, 11).
TEST(OperandRules, StochasticShardsEqualTheWhole) {
  const int64_t rows = 192, cols = 320;
  const auto x = data_r(rows * cols, 9);
  const auto source = elements(x, DType::bf16);
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    if (named.rotates || (s.granularity != G::block && s.granularity != G::tile)) continue;
    const auto run = [&](bool transposed, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
      const uint32_t amax = [&] {
        uint32_t a = 0;
        for (const float v : x) a = std::max(a, std::bit_cast<uint32_t>(std::fabs(v)));
        return a;
      }();
      QuantizeOperand p;
      p.x = source.data() + (r0 * cols + c0) * 2, p.rows = r1 - r0, p.cols = c1 - c0, p.ld = cols, p.amax = &amax;
      p.want_row = !transposed, p.want_transposed = transposed;
      QuantizedCopy& c = transposed ? p.transposed : p.row;
      c.spec = s, c.spec.stochastic = true, c.rounding = draws(3);
      c.rounding.first_row = r0, c.rounding.first_column = c0, c.rounding.row_length = cols;
      CopyBuffers out(c, transposed ? p.cols : p.rows, transposed ? p.rows : p.cols);
      quantize_operand(p);
      return std::vector<uint8_t>(out.codes.as<uint8_t>(), out.codes.as<uint8_t>() + p.rows * p.cols);
    };
    for (const bool transposed : {false, true}) {
      const auto whole = run(transposed, 0, rows, 0, cols);
      for (const auto& [r0, r1, c0, c1] :
           {std::tuple<int, int, int, int>{0, 128, 0, 320}, {128, 192, 0, 320}, {0, 192, 128, 256}, {128, 192, 256, 320}}) {
        const auto shard = run(transposed, r0, r1, c0, c1);
        for (int64_t r = r0; r < r1; ++r)
          for (int64_t c = c0; c < c1; ++c) {
            const auto w = static_cast<size_t>(transposed ? c * rows + r : r * cols + c);
            const auto q = static_cast<size_t>(transposed ? (c - c0) * (r1 - r0) + r - r0 : (r - r0) * (c1 - c0) + c - c0);
            ASSERT_EQ(shard[q], whole[w]) << named.name << " " << r << " " << c;
          }
      }
    }
  }
}

// N rows of the same 32 values: the mean over rows is the value, up to the bias of 16-bit draws (2^-17 quantum) and five standard
// deviations of the mean; rounding at fraction f has variance f (1 - f) quanta squared.
TEST(OperandRules, StochasticRoundingIsUnbiased) {
  constexpr int64_t kDraws = 100'000, kValues = 32;
  const auto values = data_r(kValues, 10);
  std::vector<float> x;
  for (int64_t i = 0; i < kDraws; ++i) x.insert(x.end(), values.begin(), values.end());
  for (const auto& [element, scale, mode, block] : {std::tuple{E::int8, S::fp32, M::none, 0},
                                                    {E::int4, S::fp32, M::none, 0},
                                                    {E::e4m3, S::e8m0, M::rceil, 32},
                                                    {E::e5m2, S::e8m0, M::rceil, 32},
                                                    {E::e3m2, S::e8m0, M::rceil, 32},
                                                    {E::e2m3, S::e8m0, M::rceil, 32},
                                                    {E::e2m1, S::e8m0, M::rceil, 32},
                                                    {E::uint4, S::fp32, M::none, 32}}) {
    OperandSpec s = make_spec(element, block == 0 ? G::row : G::block, block, scale, mode);
    const Qdq nearest(values, 1, kValues, s);
    s.stochastic = true;
    const Qdq q(x, kDraws, kValues, s, draws(1));
    const auto code = [&](int64_t d, int64_t i) { return q.codes[static_cast<size_t>(d * kValues + i)]; };
    for (int64_t i = 0; i < kValues; ++i) {
      double mean = 0, low = INFINITY, high = -INFINITY;
      for (int64_t d = 0; d < kDraws; ++d) {
        const double v = q.values[static_cast<size_t>(d * kValues + i)];
        mean += v, low = std::min(low, v), high = std::max(high, v);
      }
      mean /= kDraws;
      const double exact = values[static_cast<size_t>(i)], quantum = high - low;
      const int what = static_cast<int>(element);
      // Only the two neighbours of the value, and the nearest is one of them.
      ASSERT_LE(low, exact + 1e-6 * std::fabs(exact)) << what << " " << i;
      ASSERT_GE(high, exact - 1e-6 * std::fabs(exact)) << what << " " << i;
      for (int64_t d = 0; d < kDraws; d += 97)
        ASSERT_TRUE(q.values[static_cast<size_t>(d * kValues + i)] == low || q.values[static_cast<size_t>(d * kValues + i)] == high);
      ASSERT_TRUE(nearest.values[static_cast<size_t>(i)] == low || nearest.values[static_cast<size_t>(i)] == high) << what << " " << i;
      if (quantum == 0) {
        ASSERT_NEAR(low, exact, 1e-4 * std::fabs(exact)) << what << " " << i << " " << static_cast<int>(code(0, i));
        continue;
      }
      const double f = (exact - low) / quantum, deviation = std::sqrt(std::max(f * (1 - f), 1e-9) / kDraws);
      ASSERT_NEAR(mean, exact, quantum * (5 * deviation + 0x1p-16) + 2e-7 * std::fabs(exact)) << what << " " << i;
    }
  }
}

// Roles, steps, micro-batches and seeds draw independently; the same key gives the same draw.
TEST(OperandRules, DrawsFollowTheirKey) {
  const auto x = data_r(64 * 64, 12);
  OperandSpec s = make_spec(E::e2m1, G::block, 32, S::e8m0, M::adaptive);
  s.stochastic = true;
  const auto codes = [&](Rounding r) { return Qdq(x, 64, 64, s, r).codes; };
  const Rounding base = draws(1);
  const auto first = codes(base);
  EXPECT_EQ(codes(base), first);
  Rounding step = base, micro = base, row = base;
  step.step += 1, micro.micro += 1, row.first_row += 1;
  for (const Rounding& other : {step, micro, row, draws(2)}) {
    const auto q = codes(other);
    int64_t differ = 0;
    for (size_t i = 0; i < q.size(); ++i) differ += q[i] != first[i];
    EXPECT_GT(differ, 64 * 64 / 5);  // two independent roundings differ with probability 2 f (1 - f), 1/3 on average
    EXPECT_LT(differ, 64 * 64 / 2);
  }
}

TEST(OperandRules, ImpossibleDescriptionsAreErrors) {
  const std::vector<float> x(64);
  std::vector<uint8_t> codes(64), scales(64);
  const auto expect = [&](const char* message, auto&& change) {
    QuantizeOperand p;
    p.x = x.data(), p.type = DType::f32, p.rows = 2, p.cols = p.ld = 32, p.want_row = true;
    p.row.spec = make_spec(E::e2m1, G::block, 32, S::e8m0, M::adaptive), p.row.codes = codes.data(), p.row.scales = scales.data();
    change(p);
    try {
      quantize_operand(p);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  };
  expect("hp", [](auto& p) { p.row.spec.element = E::hp; });
  expect("blocks of 16, 32 or 128", [](auto& p) { p.row.spec.block = 48; });
  expect("do not combine with", [](auto& p) { p.row.spec.element = E::int4; });
  expect("scale mode", [](auto& p) { p.row.spec.mode = M::none; });
  expect("uos", [](auto& p) { p.row.spec.element = E::e4m3, p.row.spec.mode = M::uos; });
  expect("macro blocks", [](auto& p) { p.row.spec.element = E::e4m3, p.row.spec.two_level = TwoLevel::macro; });
  expect("outer scale", [](auto& p) { p.row.spec.two_level = TwoLevel::tensor; });
  expect("chain torchao", [](auto& p) { p.row.spec.chain = Fp4Chain::torchao; });
  expect("choice between two scales", [](auto& p) { p.row.spec.choice = ScaleChoice::squared; });
  expect("clipping", [](auto& p) { p.row.spec.granularity = G::tile, p.row.spec.clip = Clip::fixed; });
  expect("rotation of 16, 32, 64 or 128", [](auto& p) { p.row.spec.hadamard = 48; });
  expect("MS-EDEN needs", [](auto& p) { p.row.spec.eden = true; });
  expect("row stride >= 32", [](auto& p) { p.ld = 31; });
  expect("no input", [](auto& p) { p.x = nullptr; });
  expect("padded length", [](auto& p) { p.row.length = 16; });
  expect("multiple of 2", [&](auto& p) { p.cols = 31, p.row.packed = codes.data(); });
  expect("their form", [&](auto& p) { p.row.values = codes.data(); });
  expect("fold", [&](auto& p) { p.row.spec.element = E::e4m3, p.row.form = ValueForm::fold_e5m2, p.row.values = codes.data(); });
  expect("macro blocks into e4m3",
         [&](auto& p) { p.row.spec.two_level = TwoLevel::macro, p.row.form = ValueForm::fold_e5m2, p.row.values = codes.data(); });
  expect("bf16 or f32", [](auto& p) { p.type = DType::s8; });
  const int32_t offsets[2] = {0, 128};
  expect("without offsets", [](auto& p) { p.groups.groups = 1; });
  expect("multiple of 128 rows", [&](auto& p) { p.groups = {1, offsets}; });
  expect("only CUDA quantises together", [&](auto& p) { p.groups = {1, offsets}, p.rows = 128, p.ld = 0, p.cols = 0; });
  expect("no padded length", [&](auto& p) {
    p.groups = {1, offsets}, p.rows = 128, p.cols = p.ld = 0;
    p.transposed = p.row, p.transposed.length = 160, p.want_transposed = true, p.want_row = false;
  });
}

}  // namespace
}  // namespace halftone
