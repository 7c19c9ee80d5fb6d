#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "halftone/formats/eden.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/pairwise_sum.h"
#include "halftone/formats/scale_choice.h"
#include "halftone/quantize/check_operand.h"
#include "halftone/quantize/panels.h"

// Scalar reference of halftone::quantize_operand: one element, one block and one rule at a time, as written in numerics.md.
namespace halftone::ref {

class OperandCopy {
 public:
  OperandCopy(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed)
      : p_(p),
        copy_(copy),
        s_(copy.spec),
        transposed_(transposed),
        R_(transposed ? p.cols : p.rows),
        C_(operand_length(copy, transposed ? p.rows : p.cols)),
        block_(block_shape(s_, R_, C_)),
        blocks_(ceil(C_, block_.cols)) {}

  void run() {
    read();
    if (s_.eden) amax_ = p_.amax != nullptr ? *p_.amax : amax(0, R_, 0, C_);
    with_width(s_.hadamard, [&]<int kWidth> { rotate<kWidth>(); });
    if (!s_.eden) amax_ = p_.amax != nullptr && !uses_rotated_amax(s_) ? *p_.amax : amax(0, R_, 0, C_);
    if (s_.two_level == TwoLevel::macro) apply_macro();
    outer_ = s_.eden ? eden_outer(s_.hadamard, amax_) : fp4_outer(s_.chain, fp4_range(s_), s_.two_level, amax_);
    if (copy_.outer != nullptr) *copy_.outer = outer_.scale;
    codes_.resize(x_.size());
    if (s_.eden) {
      for (int64_t r = 0; r < R_; ++r)
        for (int64_t c = 0; c < C_; c += s_.hadamard) quantize_group(r, c);
    }
    for (int64_t r = 0; r < R_ && !s_.eden; r += block_.rows)
      for (int64_t c = 0; c < C_; c += block_.cols) quantize_block(r, std::min(R_, r + block_.rows), c, std::min(C_, c + block_.cols));
    if (R_ * C_ == 0 && s_.granularity == Granularity::tensor) quantize_block(0, 0, 0, 0);
    if (R_ > 0 && C_ == 0 && s_.granularity == Granularity::row)
      for (int64_t r = 0; r < R_; ++r) quantize_block(r, r + 1, 0, 0);
    if (copy_.panels != nullptr) return write_panels();
    write_codes();
    if (is_fold(copy_.form))
      write_folded();
    else if (copy_.form != ValueForm::none)
      write_values();
  }

 private:
  struct Encoder {  // y = (x - zero) * factor, or x / factor in chain alto
    float factor = 0, zero = 0;
  };

  static int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
  float& x(int64_t r, int64_t c) { return x_[static_cast<size_t>(r * C_ + c)]; }
  int64_t scale_index(int64_t r, int64_t c) const {
    if (s_.granularity == Granularity::tensor) return 0;
    return s_.granularity == Granularity::row ? r : r / block_.rows * blocks_ + c / block_.cols;
  }
  static uint32_t magnitude(float v) { return std::bit_cast<uint32_t>(v) & 0x7FFFFFFFu; }

  void read() {
    x_.assign(static_cast<size_t>(R_ * C_), 0.0f);
    for (int64_t i = 0; i < p_.rows; ++i) {
      for (int64_t j = 0; j < p_.cols; ++j) {
        const int64_t at = i * p_.ld + j;
        const float v = p_.type == DType::f32 ? static_cast<const float*>(p_.x)[at] : to_float(static_cast<const bf16*>(p_.x)[at]);
        (transposed_ ? x(j, i) : x(i, j)) = v;
      }
    }
  }

  template <int kWidth>
  void rotate() {
    for (int64_t r = 0; r < R_; ++r) {
      for (int64_t c = 0; c < C_; c += kWidth) {
        float v[kWidth];
        for (int j = 0; j < kWidth; ++j) v[j] = x(r, c + j);
        hadamard(v, copy_.signs);
        const bool half = p_.type == DType::bf16 && !s_.eden;
        for (int j = 0; j < kWidth; ++j) x(r, c + j) = half ? bf16_nearest(v[j]) : v[j];
      }
    }
  }

  uint32_t amax(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    uint32_t a = 0;
    for (int64_t r = r0; r < r1; ++r)
      for (int64_t c = c0; c < c1; ++c) a = std::max(a, magnitude(x(r, c)));
    return a;
  }

  void apply_macro() {
    const int64_t high = s_.granularity == Granularity::tile ? 128 : 1;
    for (int64_t r = 0; r < R_; r += high) {
      for (int64_t c = 0; c < C_; c += 128) {
        const int64_t r1 = std::min(R_, r + high), c1 = std::min(C_, c + 128);
        const uint32_t a = amax(r, r1, c, c1);
        const uint8_t byte = macro_byte(a);
        if (copy_.macro != nullptr) copy_.macro[r / high * ceil(C_, 128) + c / 128] = byte;
        for (int64_t i = r; i < r1; ++i)
          for (int64_t j = c; j < c1; ++j) x(i, j) = poisoned(a) ? quiet_nan() : x(i, j) * inv_macro(byte);
      }
    }
  }

  void set_byte(int64_t at, uint8_t b) {
    bytes_.resize(std::max(bytes_.size(), static_cast<size_t>(at + 1)));
    bytes_[static_cast<size_t>(at)] = b;
    if (copy_.scales != nullptr) static_cast<uint8_t*>(copy_.scales)[at] = b;
  }

  // Computes and writes the scale of one block; returns the encoding parameters of its elements.
  Encoder block_scale(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const int64_t at = scale_index(r0, c0);
    const uint32_t a = s_.granularity == Granularity::tensor ? amax_ : amax(r0, r1, c0, c1);
    const auto byte = [&](uint8_t b) { set_byte(at, b); };
    const auto pair = [&](ScalePair s, float zero = 0) {
      scales_.resize(std::max(scales_.size(), static_cast<size_t>(at + 1)));
      zeros_.resize(scales_.size());
      scales_[static_cast<size_t>(at)] = s.scale, zeros_[static_cast<size_t>(at)] = zero;
      if (copy_.scales != nullptr) static_cast<float*>(copy_.scales)[at] = s.scale;
      if (copy_.zeros != nullptr && s_.element == Element::uint4) copy_.zeros[at] = zero;
      return Encoder{s.inv, zero};
    };
    if (s_.scale == ScaleFormat::e8m0) {
      uint8_t b = mx_scale_byte(MxElement(s_.element), s_.mode, a);
      if (s_.clip == Clip::dynamic && !poisoned(a)) b = clipped(r0, c0, c1);
      byte(b);
      return {mx_inverse(b, s_.clip == Clip::fixed)};
    }
    if (s_.scale == ScaleFormat::e4m3 || s_.scale == ScaleFormat::ue5m3) {
      const uint8_t b = s_.choice == ScaleChoice::amax ? fp4_block_scale(s_.chain, s_.scale, a, outer_, largest_code(s_.element))
                                                       : chosen(a, r0, r1, c0, c1);
      byte(b);
      return {fp4_factor(s_.chain, s_.scale, b, outer_)};
    }
    int32_t low = 0x7FFFFFFF, high = -low - 1;
    for (int64_t r = r0; r < r1; ++r)
      for (int64_t c = c0; c < c1; ++c) low = std::min(low, order_key(x(r, c))), high = std::max(high, order_key(x(r, c)));
    switch (s_.element) {
      case Element::int8:
        return pair(halftone::int8_scale(a, s_.scale_floor));
      case Element::int4:
        return pair(
            int4_scale(high < 0 ? 0 : magnitude(from_order_key(high)), low >= 0 ? 0 : magnitude(from_order_key(low)), s_.scale_floor));
      case Element::uint4: {
        const AffineScale s = uint4_scale(a, from_order_key(low), from_order_key(high), s_.scale == ScaleFormat::bf16);
        return pair({s.scale, s.inv}, s.zero);
      }
      case Element::ternary:
        return pair(ternary_scale(pairwise_sum(p_.rows * p_.cols, [&](int64_t i) { return std::fabs(static_cast<double>(given(i))); }),
                                  p_.rows * p_.cols));
      default:
        return pair(fp8_scale(float_of(s_.element), s_.scale == ScaleFormat::fp32_pow2, a));
    }
  }
  // The block scale with the smaller error.
  uint8_t chosen(uint32_t a, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const ScaleCandidates c = scale_candidates(s_.chain, s_.scale, a, outer_);
    if (c.six == c.four || c.four_anyway) return c.four;
    ChoiceErrors errors;
    for (int64_t i = r0; i < r1; ++i)
      for (int64_t j = c0; j < c1; ++j) errors.add(s_.choice, c, x(i, j));
    return takes_four(s_.choice, decode_block_scale(s_.scale, c.six), decode_block_scale(s_.scale, c.four), errors) ? c.four : c.six;
  }
  // Element i of the given matrix in row-major order.
  float given(int64_t i) { return transposed_ ? x(i % p_.cols, i / p_.cols) : x(i / p_.cols, i % p_.cols); }

  uint8_t clipped(int64_t r, int64_t c0, int64_t c1) {
    const int64_t n = c1 - c0;
    const double sum = pairwise_sum(n, [&](int64_t i) { return static_cast<double>(x(r, c0 + i)); });
    const double squares = pairwise_sum(n, [&](int64_t i) {
      const double v = x(r, c0 + i);
      return v * v;
    });
    return clip_scale_byte(static_cast<float>(std::sqrt(clip_variance(sum, squares, static_cast<int>(n)))));
  }

  void quantize_block(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const Encoder how = block_scale(r0, r1, c0, c1);
    const bool chained = s_.scale == ScaleFormat::e4m3 || s_.scale == ScaleFormat::ue5m3;
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) {
        const float v = x(r, c);
        const float y = chained ? fp4_scaled(s_.chain, v, how.factor) : (s_.element == Element::uint4 ? v - how.zero : v) * how.factor;
        codes_[static_cast<size_t>(r * C_ + c)] = code(y, r, c);
      }
    }
  }

  // MS-EDEN of one rotation group.
  void quantize_group(int64_t r, int64_t c0) {
    const int64_t c1 = c0 + s_.hadamard;
    bool bad = outer_.scale != outer_.scale;
    for (int64_t c = c0; c < c1; c += kEdenBlock) bad = bad || poisoned(amax(r, r + 1, c, c + kEdenBlock));
    std::vector<EdenSums> sums;
    std::vector<float> scales;
    for (int64_t c = c0; c < c1 && !bad; c += kEdenBlock) {
      scales.push_back(decode(Float::e4m3, eden_block_scale(amax(r, r + 1, c, c + kEdenBlock), outer_)));
      const float factor = eden_factor(scales.back(), outer_);
      EdenSums of_elements[kEdenBlock];
      for (int64_t i = c; i < c + kEdenBlock; ++i) {
        const float y = x(r, i) * factor;
        const uint8_t q = codes_[static_cast<size_t>(r * C_ + i)] = encode(Float::e2m1, y);
        of_elements[i - c] = {y * y, y * decode(Float::e2m1, q)};
      }
      sums.push_back(eden_weighted(eden_sum(of_elements, kEdenBlock), scales.back()));
    }
    const float correction = bad ? 0 : eden_correction(eden_sum(sums.data(), static_cast<int>(sums.size())));
    for (int64_t c = c0; c < c1; c += kEdenBlock) {
      const auto i = static_cast<size_t>((c - c0) / kEdenBlock);
      set_byte(scale_index(r, c), bad ? poison_code(Float::e4m3) : eden_rounded(scales[i], correction, draw(r, c)));
    }
  }
  uint16_t draw(int64_t r, int64_t c) const {
    return sr_bits16(copy_.rounding, transposed_ ? copy_.rounding.index(c, r, p_.cols) : copy_.rounding.index(r, c, p_.cols));
  }
  uint8_t code(float y, int64_t r, int64_t c) const {
    const uint16_t u = s_.stochastic ? draw(r, c) : uint16_t{0};
    if (is_float(s_.element)) return s_.stochastic ? encode_sr(float_of(s_.element), y, u) : encode(float_of(s_.element), y);
    return static_cast<uint8_t>(s_.stochastic ? encode_sr(int_range(s_), y, u) : encode(int_range(s_), y));
  }

  void write_codes() {
    if (copy_.codes != nullptr && !codes_.empty()) std::memcpy(copy_.codes, codes_.data(), codes_.size());
    if (copy_.packed == nullptr) return;
    uint8_t* out = copy_.packed;
    const int bits = bits_of(s_.element);
    for (size_t i = 0; i < codes_.size(); i += static_cast<size_t>(packed_group(s_.element))) {
      const uint8_t* q = codes_.data() + i;
      if (bits == 4) *out++ = pack4(q[0], q[1]);
      if (bits == 2) *out++ = pack2(q[0], q[1], q[2], q[3]);
      if (bits == 6) {
        const uint32_t word = pack6(q[0], q[1], q[2], q[3]);
        for (int j = 0; j < 3; ++j) *out++ = static_cast<uint8_t>(word >> 8 * j);
      }
    }
  }

  void write_panels() {
    const DType type = panel_type(s_);
    std::memset(copy_.panels, 0, static_cast<size_t>(panels_bytes(type, C_, R_)));
    for (int64_t r = 0; r < R_; ++r) {
      for (int64_t c = 0; c < C_; ++c) {
        const uint8_t q = codes_[static_cast<size_t>(r * C_ + c)];
        const bf16 value(value_of(q));
        auto* out = static_cast<std::byte*>(copy_.panels) + panel_offset(type, C_, c, r);
        std::memcpy(out, type == DType::s8 ? static_cast<const void*>(&q) : &value, size_of(type));
      }
    }
  }

  float value_of(uint8_t q) const {
    return is_float(s_.element) ? decode(float_of(s_.element), q) : static_cast<float>(static_cast<int8_t>(q));
  }

  void write_values() {
    for (int64_t i = 0; i < R_ * C_; ++i) {
      const int64_t at = scale_index(i / C_, i % C_);
      float v = value_of(codes_[static_cast<size_t>(i)]);
      if (has_byte_scales(s_.scale)) v *= decode_block_scale(s_.scale, bytes_[static_cast<size_t>(at)]);
      if (s_.element == Element::uint4) {
        const float product = v * scales_[static_cast<size_t>(at)];
        v = zeros_[static_cast<size_t>(at)] + product;
      }
      if (v != v) v = quiet_nan();
      if (copy_.form == ValueForm::f32)
        static_cast<float*>(copy_.values)[i] = v;
      else
        static_cast<uint16_t*>(copy_.values)[i] = bf16_bits(v);
    }
  }

  void write_folded() {
    const Float target = copy_.form == ValueForm::fold_e4m3 ? Float::e4m3 : Float::e5m2;
    auto* out = static_cast<uint8_t*>(copy_.values);
    const uint8_t whole = mx_reference_byte(float_of(s_.element), s_.mode, s_.clip, amax_);
    if (target == Float::e5m2) *copy_.fold_scale = whole == kE8m0Nan ? quiet_nan() : fold_scale(target, whole - 127);
    for (int64_t r = 0; r < R_; ++r) {
      uint8_t reference = whole;
      if (target == Float::e4m3) {
        reference = C_ > 0 ? 0 : mx_lowest_byte(s_.mode);
        for (int64_t c = 0; c < C_; c += block_.cols) reference = std::max(reference, bytes_[static_cast<size_t>(scale_index(r, c))]);
        copy_.fold_scale[r] = reference == kE8m0Nan ? quiet_nan() : fold_scale(target, reference - 127);
      }
      for (int64_t c = 0; c < C_; ++c) {
        const uint8_t block = bytes_[static_cast<size_t>(scale_index(r, c))];
        if (reference == kE8m0Nan || block == kE8m0Nan) {
          out[r * C_ + c] = poison_code(target);
          continue;
        }
        const FoldedCode folded = fold_code(target, codes_[static_cast<size_t>(r * C_ + c)], block - 127, reference - 127);
        out[r * C_ + c] = folded.code;
        if (folded.changed && copy_.lost != nullptr) ++*copy_.lost;
      }
    }
  }

  const QuantizeOperand& p_;
  const QuantizedCopy& copy_;
  const OperandSpec& s_;
  bool transposed_;
  int64_t R_, C_;
  BlockShape block_;
  int64_t blocks_;
  uint32_t amax_ = 0;
  ScalePair outer_{1, 1};
  std::vector<float> x_, scales_, zeros_;
  std::vector<uint8_t> codes_, bytes_;
};

inline void quantize_operand(const QuantizeOperand& p) {
  check_operand(p);
  if (p.want_row) OperandCopy(p, p.row, false).run();
  if (p.want_transposed) OperandCopy(p, p.transposed, true).run();
}

}  // namespace halftone::ref
