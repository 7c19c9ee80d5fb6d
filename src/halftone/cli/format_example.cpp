#include "halftone/cli/format_example.h"

#include <fmt/format.h>

#include <cmath>

#include "halftone/base/philox.h"
#include "halftone/cli/format_tables.h"
#include "halftone/formats/bf16_round.h"
#include "halftone/formats/eden.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/names.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/pairwise_sum.h"
#include "halftone/formats/scale_choice.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {
namespace {

constexpr uint64_t kSeed = 42;
constexpr uint32_t kStep = 1;
constexpr std::string_view kWeight = "layers.0.feed_forward.w1.weight";

template <class T, class F>
std::string listed(const std::vector<T>& items, F&& text) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += i % 8 == 0 ? "\n" : " ";
    out += fmt::format("{:>9}", text(items[i]));
  }
  return out;
}
std::string numbers(const std::vector<float>& v) {
  return listed(v, [](float x) { return fmt::format("{:.5g}", x); });
}

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

uint32_t amax_bits(const std::vector<float>& x) {
  uint32_t most = 0;
  for (const float v : x) most = std::max(most, magnitude(v));
  return most;
}

// "5.25 = 1.3125 * 2^2"
std::string as_power(float a) {
  int k = 0;
  const double m = std::frexp(static_cast<double>(a), &k);
  return a > 0 && std::isfinite(a) ? fmt::format("{} = {} * 2^{}", a, 2 * m, k - 1) : fmt::format("{}", a);
}

class Worker {
 public:
  Worker(const OperandSpec& spec, std::vector<float> x, std::string_view role) : s_(spec), x_(std::move(x)), role_(role) {}

  WorkedExample run() {
    step("x", numbers(x_));
    exact_ = x_;
    const uint32_t given = amax_bits(x_);
    if (s_.hadamard > 0) rotate();
    if (s_.eden) return eden(given);
    const uint32_t a = amax_bits(x_);
    step("amax", as_power(std::bit_cast<float>(a)));
    if (s_.scale == ScaleFormat::e8m0)
      scale_mx(a);
    else if (s_.scale == ScaleFormat::e4m3 || s_.scale == ScaleFormat::ue5m3)
      scale_fp4(a);
    else if (is_float(s_.element))
      scale_fp8(a);
    else
      scale_integer(a);
    round();
    for (float& v : result_.values) v += zero_;
    step("value", numbers(result_.values));
    step("SQNR", fmt::format("{:.1f} dB", sqnr()));
    if (s_.element == Element::e2m1 && s_.scale == ScaleFormat::e8m0 && s_.two_level == TwoLevel::none && s_.clip == Clip::none) fold();
    return std::move(result_);
  }

 private:
  void step(std::string what, std::string value) { result_.steps.emplace_back(std::move(what), std::move(value)); }

  void rotate() {
    RotationSigns signs;
    if (s_.signs == Signs::torchao) signs = kFixedSigns16;
    if (s_.signs == Signs::random) signs = RotationSigns(philox(philox_key(kSeed, fmt::format("{}#{}", kWeight, sign_role())), 0));
    step("amax before", fmt::format("{}", std::bit_cast<float>(amax_bits(x_))));
    with_width(s_.hadamard, [&]<int kWidth> {
      float v[kWidth];
      std::copy_n(x_.begin(), kWidth, v);
      hadamard(v, signs);
      std::copy_n(v, kWidth, x_.begin());
    });
    for (float& v : x_) v = s_.eden ? v : bf16_nearest(v);  // to the type of x
    exact_ = x_;
    step(fmt::format("H{} x", s_.hadamard), numbers(x_));
    std::string words;
    for (int j = 0; j < s_.hadamard; j += 32)
      words += fmt::format("{}0x{:0{}X}", j > 0 ? " " : "", signs.word[j / 32], std::min(s_.hadamard, 32) / 4);
    step("signs", words);
  }

  std::string_view sign_role() const { return role_.ends_with("dgrad") ? "rht.dgrad" : "rht"; }

  // The example is a tensor of one rotation group.
  WorkedExample eden(uint32_t given) {
    const ScalePair outer = eden_outer(s_.hadamard, given);
    step("outer", fmt::format("amax before / {} = {}", eden_range(s_.hadamard), outer.scale));
    std::vector<float> scales;
    std::vector<EdenSums> sums;
    for (size_t first = 0; first < x_.size(); first += kEdenBlock) {
      const std::vector<float> block(x_.begin() + static_cast<int64_t>(first), x_.begin() + static_cast<int64_t>(first) + kEdenBlock);
      scales.push_back(decode(Float::e4m3, eden_block_scale(amax_bits(block), outer)));
      std::vector<EdenSums> of_elements;
      for (const float x : block) {
        const float y = x * eden_factor(scales.back(), outer);
        result_.codes.push_back(encode(Float::e2m1, y)), y_.push_back(y);
        of_elements.push_back({y * y, y * decode(Float::e2m1, result_.codes.back())});
      }
      sums.push_back(eden_weighted(eden_sum(of_elements.data(), kEdenBlock), scales.back()));
    }
    step("block scales", numbers(scales));
    step("x / scales", numbers(y_));
    step("codes", listed(result_.codes, [](uint8_t c) { return fmt::format("0x{:X}", c); }));
    const float correction = eden_correction(eden_sum(sums.data(), static_cast<int>(sums.size())));
    step("correction", fmt::format("<x, x> / <Q(x), x> = {}", correction));
    Rounding r;
    r.key = philox_key(kSeed, fmt::format("{}#{}.scale", kWeight, role_)), r.step = kStep;
    for (size_t b = 0; b < scales.size(); ++b) {
      const uint8_t q = eden_rounded(scales[b], correction, sr_bits16(r, static_cast<int64_t>(b) * kEdenBlock));
      scales[b] = decode(Float::e4m3, q);
      for (size_t i = b * kEdenBlock; i < (b + 1) * kEdenBlock; ++i)
        result_.values.push_back(decode(Float::e2m1, result_.codes[i]) * scales[b] * outer.scale);
    }
    step("stored scales", numbers(scales));
    step("value", numbers(result_.values));
    step("SQNR", fmt::format("{:.1f} dB", sqnr()));
    return std::move(result_);
  }

  void scale_fp8(uint32_t a) {
    const ScalePair p = fp8_scale(float_of(s_.element), s_.scale == ScaleFormat::fp32_pow2, a);
    step("inv_scale", fmt::format("{} / amax = {}{}", spec(float_of(s_.element)).max_finite(), p.inv,
                                  s_.scale == ScaleFormat::fp32_pow2 ? ", cut to a power of two" : ""));
    step("scale", fmt::format("{}", p.scale));
    for (const float v : x_) y_.push_back(v * p.inv);
    step("x * inv", numbers(y_));
    factor_ = p.scale;
  }

  void scale_mx(uint32_t a) {
    float outside = 1;
    if (s_.two_level == TwoLevel::macro) {
      const uint8_t byte = macro_byte(a);
      outside = inv_macro(byte);
      step("macro byte", fmt::format("0x{:02X}: x is multiplied by {}", byte, outside));
      for (float& v : x_) v *= outside;
      a = amax_bits(x_);
      step("amax", as_power(std::bit_cast<float>(a)));
    }
    uint8_t byte = 0;
    if (s_.clip == Clip::dynamic) {
      const int n = static_cast<int>(x_.size());
      const double sum = pairwise_sum(n, [&](int64_t i) { return double{x_[static_cast<size_t>(i)]}; });
      const double squares = pairwise_sum(n, [&](int64_t i) { return double{x_[static_cast<size_t>(i)]} * x_[static_cast<size_t>(i)]; });
      const auto sigma = static_cast<float>(std::sqrt(clip_variance(sum, squares, n)));
      byte = clip_scale_byte(sigma);
      step("sigma", fmt::format("{}", sigma));
    } else {
      byte = mx_scale_byte(MxElement(s_.element), s_.mode, a);
    }
    const bool clipped = s_.clip == Clip::fixed;
    step("scale byte", fmt::format("{} = 2^{} ({})", byte, int{byte} - 127, s_.clip == Clip::dynamic ? "sigma" : name(s_.mode)));
    const float inv = mx_inverse(byte, clipped);
    for (const float v : x_) y_.push_back(v * inv);
    step(clipped ? "3/4 x / scale" : "x / scale", numbers(y_));
    factor_ = decode_e8m0(byte) * (clipped ? 4.0f / 3.0f : 1.0f) / outside;
    byte_ = byte;
  }

  // The example is a tensor of one block.
  void scale_fp4(uint32_t a) {
    const ScalePair outer = fp4_outer(s_.chain, fp4_range(s_), s_.two_level, a);
    const uint8_t code =
        s_.choice == ScaleChoice::amax ? fp4_block_scale(s_.chain, s_.scale, a, outer, largest_code(s_.element)) : chosen(a, outer);
    step("outer", s_.two_level == TwoLevel::none ? "1 (none)" : fmt::format("amax / {} = {}", fp4_range(s_), outer.scale));
    step("block scale", fmt::format("0x{:02X} = {} ({})", code, decode_block_scale(s_.scale, code), name(s_.scale)));
    const float factor = fp4_factor(s_.chain, s_.scale, code, outer);
    for (const float v : x_) y_.push_back(fp4_scaled(s_.chain, v, factor));
    step("x / scales", numbers(y_));
    factor_ = decode_block_scale(s_.scale, code) * outer.scale;
  }

  uint8_t chosen(uint32_t a, ScalePair outer) {
    const ScaleCandidates c = scale_candidates(s_.chain, s_.scale, a, outer);
    const float six = decode_block_scale(s_.scale, c.six), four = decode_block_scale(s_.scale, c.four);
    ChoiceErrors e;
    for (const float v : x_) e.add(s_.choice, c, v);
    step("two scales", fmt::format("{} of amax / 6 and {} of amax / 4", six, four));
    step("their errors", fmt::format("{} and {} ({}, in 128ths of each)", e.six, e.four, name_of(kScaleChoiceNames, s_.choice)));
    return c.four_anyway || takes_four(s_.choice, six, four, e) ? c.four : c.six;
  }

  void scale_integer(uint32_t a) {
    ScalePair p{};
    if (s_.element == Element::int8) {
      p = int8_scale(a, s_.scale_floor);
      step("scale", fmt::format("amax / 127 = {}", p.scale));
    } else if (s_.element == Element::int4) {
      uint32_t pos = 0, neg = 0;
      for (const float v : x_) (v < 0 ? neg : pos) = std::max(v < 0 ? neg : pos, magnitude(v));
      p = int4_scale(pos, neg, s_.scale_floor);
      step("scale", fmt::format("max({} / 7, {} / 8) = {}", std::bit_cast<float>(pos), std::bit_cast<float>(neg), p.scale));
    } else if (s_.element == Element::uint4) {
      const auto [low, high] = std::minmax_element(x_.begin(), x_.end());
      const AffineScale q = uint4_scale(a, *low, *high, s_.scale == ScaleFormat::bf16);
      zero_ = q.zero, p = {q.scale, q.inv};
      step("zero", fmt::format("{}", q.zero));
      step("scale", fmt::format("({} - zero) / 15 = {}", *high, q.scale));
    } else {
      const auto n = static_cast<int64_t>(x_.size());
      p = ternary_scale(pairwise_sum(n, [&](int64_t i) { return std::fabs(double{x_[static_cast<size_t>(i)]}); }), n);
      step("scale", fmt::format("mean of |x| = {}", p.scale));
    }
    for (const float v : x_) y_.push_back((v - zero_) * p.inv);
    step(zero_ == 0 ? "x * inv" : "(x-zero)*inv", numbers(y_));
    factor_ = p.scale;
  }

  void round() {
    Rounding r;
    r.key = philox_key(kSeed, fmt::format("{}#{}", kWeight, role_)), r.step = kStep;
    std::vector<uint16_t> random;
    for (size_t i = 0; i < y_.size(); ++i) {
      const uint16_t u = sr_bits16(r, static_cast<int64_t>(i));
      random.push_back(u);
      const auto code = [&](auto f) { return s_.stochastic ? encode_sr(f, y_[i], u) : encode(f, y_[i]); };
      const int q = is_float(s_.element) ? code(float_of(s_.element)) : code(int_range(s_));
      result_.codes.push_back(static_cast<uint8_t>(q));
      const float y = is_float(s_.element) ? decode(float_of(s_.element), static_cast<uint8_t>(q)) : static_cast<float>(q);
      result_.values.push_back(y * factor_);
    }
    if (s_.stochastic) step("draws / 2^16", listed(random, [](uint16_t u) { return fmt::format("{:.3f}", (u + 0.5) / 65536); }));
    step("codes", listed(result_.codes, [&](uint8_t c) {
           if (is_float(s_.element)) return fmt::format("0x{:0{}X}", c, bits_of(s_.element) > 4 ? 2 : 1);
           return fmt::format("{}", s_.element == Element::uint4 ? int{c} : int{static_cast<int8_t>(c)});
         }));
    if (bits_of(s_.element) != 4) return;
    std::vector<uint8_t> packed;
    for (size_t i = 0; i + 1 < result_.codes.size(); i += 2) packed.push_back(pack4(result_.codes[i], result_.codes[i + 1]));
    step("packed", listed(packed, [](uint8_t c) { return fmt::format("0x{:02X}", c); }));
  }

  // As read by the fp8 GEMM of sm_90, if the block is the largest of its row.
  void fold() {
    const int e = int{byte_} - 127;
    std::vector<uint8_t> folded;
    for (const uint8_t c : result_.codes) folded.push_back(fold_code(Float::e4m3, c, e, e).code);
    step("folded", listed(folded, [](uint8_t c) { return fmt::format("0x{:02X}", c); }));
    step("", fmt::format("the same as e4m3 codes of value / {}: what the fp8 product of sm_90 reads", fold_scale(Float::e4m3, e)));
  }

  double sqnr() const {
    double signal = 0, noise = 0;
    for (size_t i = 0; i < exact_.size(); ++i) {
      const double d = double{exact_[i]} - result_.values[i];
      signal += double{exact_[i]} * exact_[i], noise += d * d;
    }
    return 10 * std::log10(signal / noise);
  }

  const OperandSpec s_;
  std::vector<float> x_, exact_, y_;
  std::string_view role_;
  float factor_ = 1, zero_ = 0;
  uint8_t byte_ = 0;
  WorkedExample result_;
};

}  // namespace

WorkedExample work_out(const OperandSpec& spec, std::vector<float> x, std::string_view role) {
  return Worker(spec, std::move(x), role).run();
}

std::vector<float> example_numbers(int count) {
  constexpr float kNumbers[8] = {0.3125f, -0.75f, 1.25f, 2.625f, -5.25f, 0.0625f, 3.375f, -1.0f};
  std::vector<float> x;
  for (int i = 0; i < count; ++i) x.push_back(kNumbers[i % 8] * (i < 8 ? 1.0f : static_cast<float>(1 + i / 8) / 8));
  return x;
}

}  // namespace halftone
