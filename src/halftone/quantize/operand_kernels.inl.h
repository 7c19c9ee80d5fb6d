// Inner loops of operand_kernels.h over a vector type V, Simd. They call no function of formats/ at run time: the linker could keep its
// copy from a wider instruction set.
#pragma once
#include "halftone/formats/float_spec.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_spec.h"
#include "halftone/quantize/row_kernels.inl.h"

namespace halftone::quantize {

// Encoders of finite y; each lane's low byte is the code; u: 16-bit draws.
template <class V, Float kFormat>
struct FloatCoder {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr FloatSpec s = spec(kFormat);
  static constexpr int kShift = 23 - s.mantissa_bits, kSign = 31 - (s.bits() - 1);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - s.bias) << s.mantissa_bits;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + 1 - s.bias) << 23, kMaxCode = static_cast<uint32_t>(s.max_code());
  static constexpr float kPerSubnormal = static_cast<float>(1 / s.min_subnormal());

  template <bool kStochastic>
  static I code(F y, I u) {
    const I bits = V::bits(y), a = V::and_(bits, V::seti(0x7FFFFFFFu));
    const F quanta = V::mul(V::floats(a), V::set(kPerSubnormal));  // below the smallest normal value
    I normal, small;
    if constexpr (kStochastic) {
      // up <=> (u + 1/2) 2^-16 < rest 2^-kShift
      const I rest = V::and_(a, V::seti((1u << kShift) - 1)), twice = V::addi(V::template shl<1>(u), V::seti(1));
      const I up = V::one_if(V::lt(V::template shl<kShift - 17>(twice), rest));
      normal = V::addi(V::subi(V::template shr<kShift>(a), V::seti(kRebias)), up);
      const F k = V::floor(quanta), half = V::add(V::from_int(u), V::set(0.5f));
      const I up_small = V::one_if(V::gt(V::mul(V::sub(quanta, k), V::set(65536.0f)), half));
      small = V::addi(V::rint(k), up_small);
    } else {
      const I odd = V::and_(V::template shr<kShift>(a), V::seti(1));
      const I r = V::addi(V::addi(a, V::seti((1u << (kShift - 1)) - 1)), odd);
      normal = V::subi(V::template shr<kShift>(r), V::seti(kRebias));
      small = V::rint(quanta);
    }
    const I q = V::mini(V::select(V::lt(a, V::seti(kMinNormal)), small, normal), V::seti(kMaxCode));
    return V::or_masked(q, V::template shr<kSign>(bits), V::seti(static_cast<uint32_t>(s.sign_mask())));
  }

  // fp32 value of codes.
  static F value(I q) {
    constexpr uint32_t kMask = static_cast<uint32_t>(s.sign_mask() - 1);
    const I m = V::and_(q, V::seti(kMask)), sign = V::template shl<kSign>(V::and_(q, V::seti(static_cast<uint32_t>(s.sign_mask()))));
    const I normal = V::addi(V::template shl<kShift>(m), V::seti(static_cast<uint32_t>(127 - s.bias) << 23));
    const I small = V::bits(V::mul(V::from_int(m), V::set(static_cast<float>(s.min_subnormal()))));
    const I v = V::or_(V::select(V::lt(m, V::seti(1u << s.mantissa_bits)), small, normal), sign);
    if constexpr (s.specials == Specials::None) return V::floats(v);
    return V::floats(V::select(V::lt(V::seti(kMaxCode), m), V::seti(0x7FC00000u), v));
  }
};

template <class V>
struct OperandLeaf {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int64_t kLanes = V::kLanes;

  template <class T>
  static void load_of(const T* x, int64_t ld, int64_t valid_rows, int64_t valid_columns, int64_t rows, int64_t width, float* f) {
    for (int64_t r = 0; r < rows; ++r, f += width) {
      const int64_t n = r < valid_rows ? valid_columns : 0;
      const T* row = x + r * ld;
      // Prefetches the next tile's columns: the run is too short for the hardware prefetcher.
      const char* next = reinterpret_cast<const char*>(row + width);
      for (int64_t b = 0; b < (n == width ? width * static_cast<int64_t>(sizeof(T)) : 0); b += 64) _mm_prefetch(next + b, _MM_HINT_T1);
      int64_t c = 0;
      for (; c + kLanes <= n; c += kLanes) V::store(f + c, V::load(row + c));
      for (; c < n; ++c) {
        if constexpr (sizeof(T) == 2)
          f[c] = std::bit_cast<float>(static_cast<uint32_t>(row[c].bits) << 16);
        else
          f[c] = row[c];
      }
      for (; c < width; ++c) f[c] = 0;
    }
  }
  static void load(const void* x, DType type, int64_t ld, int64_t valid_rows, int64_t valid_columns, int64_t rows, int64_t width,
                   float* f) {
    typed(x, type, [&](const auto* p) { load_of(p, ld, valid_rows, valid_columns, rows, width, f); });
  }

  static I bf16_rounded(I bits) {  // in the upper halves; NaN payloads lie there too and survive
    const I odd = V::and_(V::template shr<16>(bits), V::seti(1));
    return V::addi(V::addi(bits, V::seti(0x7FFF)), odd);
  }

  static F times_norm(F v, F norm, bool half) {
    const F y = V::mul(v, norm);
    return half ? V::floats(V::and_(bf16_rounded(V::bits(y)), V::seti(0xFFFF0000u))) : y;
  }
  template <int kWidth>
  static void rotate_rows(float* f, int64_t rows, int64_t width, const uint32_t* flips, bool half) {
    constexpr float kNorm = hadamard_norm(kWidth);
    for (int64_t r = 0; r < rows; r += kWidth) {
      for (int64_t c = 0; c < width; c += kLanes) {
        F v[kWidth];
        float* p = f + r * width + c;
        _Pragma("GCC unroll 32") for (int j = 0; j < kWidth; ++j) {
          v[j] = V::floats(V::xor_(V::bits(V::load(p + j * width)), V::seti(flips[j])));
        }
        _Pragma("GCC unroll 7") for (int stride = 1; stride < kWidth; stride *= 2) {
          _Pragma("GCC unroll 32") for (int j = 0; j < kWidth; ++j) {
            if ((j & stride) != 0) continue;
            const F a = v[j], b = v[j + stride];
            v[j] = V::add(a, b);
            v[j + stride] = V::sub(a, b);
          }
        }
        _Pragma("GCC unroll 32") for (int j = 0; j < kWidth; ++j) V::store(p + j * width, times_norm(v[j], V::set(kNorm), half));
      }
    }
  }
  // One butterfly step inside a vector: the lower lane of a pair gets a + b, the upper one a - b.
  template <int kStride>
  static F butterfly(F v) {
    const I upper = V::template shl<31 - std::countr_zero(static_cast<unsigned>(kStride))>(V::and_(V::iota(), V::seti(kStride)));
    return V::add(V::template swap<kStride>(v), V::floats(V::xor_(V::bits(v), upper)));
  }
  template <int kWidth>
  static void rotate_elements(float* f, int64_t n, const uint32_t* flips, bool half) {
    constexpr float kNorm = hadamard_norm(kWidth);
    constexpr int kVectors = kWidth / kLanes;
    for (int64_t i = 0; i < n; i += kWidth, f += kWidth) {
      F v[kVectors];
      _Pragma("GCC unroll 16") for (int j = 0; j < kVectors; ++j) {
        v[j] = butterfly<1>(V::floats(V::xor_(V::bits(V::load(f + j * kLanes)), V::loadi(flips + j * kLanes))));
        v[j] = butterfly<4>(butterfly<2>(v[j]));
        if constexpr (kLanes == 16) v[j] = butterfly<8>(v[j]);
      }
      _Pragma("GCC unroll 4") for (int stride = 1; stride < kVectors; stride *= 2) {
        _Pragma("GCC unroll 16") for (int j = 0; j < kVectors; ++j) {
          if ((j & stride) != 0) continue;
          const F a = v[j], b = v[j + stride];
          v[j] = V::add(a, b);
          v[j + stride] = V::sub(a, b);
        }
      }
      _Pragma("GCC unroll 16") for (int j = 0; j < kVectors; ++j) V::store(f + j * kLanes, times_norm(v[j], V::set(kNorm), half));
    }
  }
  static void rotate(float* f, int64_t rows, int64_t width, int n, const RotationSigns& signs, bool half, bool along) {
    alignas(64) uint32_t flips[128];
    for (int j = 0; j < n; ++j) flips[j] = (signs.word[j / 32] >> j % 32) << 31;
    const auto run = [&]<int kWidth> {
      along ? rotate_elements<kWidth>(f, rows * width, flips, half) : rotate_rows<kWidth>(f, rows, width, flips, half);
    };
    if (n == 16) run.template operator()<16>();
    if (n == 32) run.template operator()<32>();
    if (n == 64) run.template operator()<64>();
    if (n == 128) run.template operator()<128>();
  }

  static I magnitude(const float* f) { return V::and_(V::loadi(f), V::seti(0x7FFFFFFFu)); }

  static void amax_along(const float* f, int64_t n, int64_t block, uint32_t* out) {
    const int64_t vectors = block / kLanes;
    for (int64_t done = 0; done < n; done += kLanes * block, out += kLanes) {
      I v[kLanes];
      _Pragma("GCC unroll 16") for (int64_t i = 0; i < kLanes; ++i) {
        I a = magnitude(f);
        for (int64_t j = 1; j < vectors; ++j) a = V::maxi(a, magnitude(f + j * kLanes));
        v[i] = a;
        f += block;
      }
      V::store(out, V::max_of_each(v));
    }
  }
  static void amax_across(const float* f, int64_t rows, int64_t width, int64_t block, uint32_t* out) {
    for (int64_t r = 0; r < rows; r += block, out += width) {
      for (int64_t c = 0; c < width; c += 4 * kLanes) {
        I a[4];
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) a[i] = V::zeroi();
        for (int64_t j = 0; j < block; ++j) {
          _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) a[i] = V::maxi(a[i], magnitude(f + (r + j) * width + c + i * kLanes));
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) V::store(out + c + i * kLanes, a[i]);
      }
    }
  }

  static void scale(float* f, int64_t rows, int64_t width, const float* factor, int64_t factor_ld, int row_shift, bool by_column) {
    for (int64_t r = 0; r < rows; ++r, f += width) {
      const float* s = factor + (r >> row_shift) * factor_ld;
      for (int64_t c = 0; c < width; c += kLanes) V::store(f + c, V::mul(V::load(f + c), by_column ? V::load(s + c) : V::set(s[c >> 7])));
    }
  }

  template <bool kStochastic, bool kByColumn, Scaling kScaling, bool kSigned, class Code>
  static void encode_of(const EncodeTile& t, Code&& code) {
    const float* f = t.f;
    const uint16_t* draws = t.draws;
    uint8_t* out = t.codes;
    const int64_t width = t.width;
    for (int64_t r = 0; r < t.rows; ++r, f += width, out += t.codes_ld) {
      const float* factor = t.factor + (r >> t.row_shift) * t.factor_ld;
      const float* zero = kScaling == Scaling::affine ? t.zero + (r >> t.row_shift) * t.factor_ld : nullptr;
      for (int64_t c = 0; c < width; c += 4 * kLanes) {
        I q[4];
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) {
          const int64_t at = c + i * kLanes;
          const F by = kByColumn ? V::load(factor + at) : V::set(factor[at >> t.column_shift]);
          F y = V::load(f + at);
          if constexpr (kScaling == Scaling::affine) y = V::sub(y, kByColumn ? V::load(zero + at) : V::set(zero[at >> t.column_shift]));
          y = kScaling == Scaling::quotient ? V::div(y, by) : V::mul(y, by);
          if constexpr (kScaling == Scaling::clamped) y = V::min(V::set(6.0f), V::max(V::set(-6.0f), y));
          q[i] = code(y, kStochastic ? V::load_u16i(draws + at) : V::zeroi());
        }
        if constexpr (kSigned)
          V::store_s8(reinterpret_cast<int8_t*>(out + c), q);
        else
          V::store_u8(out + c, q);
      }
      if constexpr (kStochastic) draws += t.draws_ld;
    }
  }
  template <bool kStochastic, Scaling kScaling, bool kSigned, class Code>
  static void encode_by(const EncodeTile& t, Code&& code) {
    if (t.by_column)
      encode_of<kStochastic, true, kScaling, kSigned>(t, code);
    else
      encode_of<kStochastic, false, kScaling, kSigned>(t, code);
  }
  template <bool kStochastic>
  static void encode_as(const EncodeTile& t) {
    const auto floats = [&]<Float kFormat>() {
      const auto code = [](F y, I u) { return FloatCoder<V, kFormat>::template code<kStochastic>(y, u); };
      if constexpr (kFormat == Float::e2m1) {
        if (t.scaling == Scaling::quotient) return encode_by<kStochastic, Scaling::quotient, false>(t, code);
        if (t.scaling == Scaling::clamped) return encode_by<kStochastic, Scaling::clamped, false>(t, code);
      }
      encode_by<kStochastic, Scaling::product, false>(t, code);
    };
    const auto ints = [&](float low, float high) {
      const F lo = V::set(low), hi = V::set(high);
      const auto code = [=](F y, I u) { return RowLeaf<V>::template int_code<kStochastic>(y, u, lo, hi); };
      if (t.scaling == Scaling::affine) return encode_by<kStochastic, Scaling::affine, true>(t, code);
      if (t.scaling == Scaling::quotient) return encode_by<kStochastic, Scaling::quotient, true>(t, code);
      encode_by<kStochastic, Scaling::product, true>(t, code);
    };
    with_format(t.element, floats, [&] { ints(static_cast<float>(t.range.lowest), static_cast<float>(t.range.highest)); });
  }
  static void encode(const EncodeTile& t) {
    if (t.stochastic)
      encode_as<true>(t);
    else
      encode_as<false>(t);
  }

  // ue5m3 encode (0 <= x <= 114688) and decode.
  static I ue5m3_code(F x) {
    const I a = V::bits(x), r = V::addi(V::addi(a, V::seti((1u << 19) - 1)), V::and_(V::template shr<20>(a), V::seti(1)));
    const I normal = V::subi(V::template shr<20>(r), V::seti((127 - 15) << 3)), small = V::rint(V::mul(x, V::set(0x1p17f)));
    return V::select(V::lt(a, V::seti((127u - 14) << 23)), small, normal);
  }
  static F ue5m3_value(I q) {
    const I normal = V::addi(V::template shl<20>(q), V::seti((127u - 15) << 23));
    return V::floats(V::select(V::lt(q, V::seti(8)), V::bits(V::mul(V::from_int(q), V::set(0x1p-17f))), normal));
  }

  static void fp4_scales(Fp4Chain chain, ScaleFormat format, const uint32_t* amax, int64_t n, ScalePair outer, float most, float times,
                         uint8_t* scales, float* factors) {
    const bool wide = format == ScaleFormat::ue5m3, torchao = chain == Fp4Chain::torchao;
    const F high = V::set(wide ? 114688.0f : 448.0f), low = V::set(wide ? 0x1p-17f : 0x1p-6f), largest = V::set(0x1.fffffep127f);
    const float per_six = outer.inv * std::bit_cast<float>(0x3E2AAAABu);  // torchao's evaluation order
    const bool all = outer.scale != outer.scale;
    for (int64_t i = 0; i < n; i += 4 * kLanes) {
      I q[4];
      _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) {
        const int64_t at = i + j * kLanes;
        q[j] = V::zeroi();
        if (at >= n) continue;
        const I a = V::loadi(amax + at);
        const typename V::M bad = V::lt(V::seti(all ? 0xFFFFFFFFu : 0x7F7FFFFFu), a);
        F v = V::floats(a);
        v = torchao ? V::mul(v, V::set(per_six)) : V::max(V::div(V::div(v, V::set(outer.scale)), V::set(most)), low);
        v = V::min(V::mul(V::set(times), V::min(v, high)), high);
        const I code = wide ? ue5m3_code(v) : FloatCoder<V, Float::e4m3>::template code<false>(v, V::zeroi());
        q[j] = V::select(bad, V::seti(wide ? 0xFF : 0x7F), code);
        F factor = V::mul(wide ? ue5m3_value(code) : FloatCoder<V, Float::e4m3>::value(code), V::set(outer.scale));
        if (torchao) factor = V::min(V::div(V::set(1.0f), factor), largest);  // 1 / 0 is infinite: clamped as well
        V::store(factors + at, V::select(bad, V::floats(V::seti(0x7FC00000u)), factor));
      }
      alignas(64) uint8_t bytes[4 * kLanes];
      V::store_u8(bytes, q);
      for (int64_t j = 0; j < 4 * kLanes && i + j < n; ++j) scales[i + j] = bytes[j];
    }
  }

  // k minus the nearest e2m1 value, in 128ths.
  static F e2m1_error(F k) {
    const F least = V::floats(V::and_(V::bits(V::max(k, V::set(128.0f))), V::seti(0x7F800000u)));
    const F magic = V::mul(least, V::set(0x1.8p22f));  // its last place is the quantum
    return V::sub(k, V::sub(V::add(k, magic), magic));
  }
  template <ScaleChoice kChoice>
  static I with_error(I sum, F error) {
    if constexpr (kChoice == ScaleChoice::squared) return V::addi(sum, V::rint(V::mul(error, error)));
    const I size = V::rint(V::abs(error));
    return kChoice == ScaleChoice::largest ? V::maxi(sum, size) : V::addi(sum, size);
  }
  template <ScaleChoice kChoice>
  static void choice_errors_of(const ChoiceTile& t) {
    const int64_t height = int64_t{1} << t.row_shift, run = int64_t{1} << t.column_shift;
    const F magic = V::set(0x1.8p23f);
    alignas(64) int32_t six[kTileRow], four[kTileRow];  // of the columns
    for (int64_t r = 0; r < t.rows; r += height) {
      const int64_t first = (r >> t.row_shift) * t.ld;
      for (int64_t c = 0; c < t.width; c += kLanes) {
        const int64_t at = first + (c >> t.column_shift);
        const F per_scale = run == 1 ? V::load(t.per_scale + at) : V::set(t.per_scale[at]);
        const F ratio = run == 1 ? V::load(t.ratio + at) : V::set(t.ratio[at]);
        I e6 = V::zeroi(), e4 = V::zeroi();
        for (int64_t j = 0; j < height; ++j) {
          const F k = V::sub(V::fma(V::abs(V::load(t.f + (r + j) * t.width + c)), per_scale, magic), magic);
          e6 = with_error<kChoice>(e6, e2m1_error(k));
          e4 = with_error<kChoice>(e4, e2m1_error(V::sub(V::add(V::mul(k, ratio), magic), magic)));
        }
        V::store(static_cast<void*>(six + c), e6), V::store(static_cast<void*>(four + c), e4);
      }
      for (int64_t c = 0; c < t.width; c += run) {
        const auto whole = [&](const int32_t* of) {
          int32_t sum = 0;
          for (int64_t i = c; i < c + run; ++i) sum = kChoice != ScaleChoice::largest ? sum + of[i] : sum < of[i] ? of[i] : sum;
          return sum;
        };
        t.six[first + (c >> t.column_shift)] = whole(six), t.four[first + (c >> t.column_shift)] = whole(four);
      }
    }
  }
  static void choice_errors(const ChoiceTile& t) {
    if (t.choice == ScaleChoice::squared) return choice_errors_of<ScaleChoice::squared>(t);
    if (t.choice == ScaleChoice::absolute) return choice_errors_of<ScaleChoice::absolute>(t);
    choice_errors_of<ScaleChoice::largest>(t);
  }

  static void transpose(const uint8_t* codes, int64_t codes_ld, int64_t rows, int64_t width, uint8_t* out, int64_t ld) {
    for (int64_t r = 0; r < rows; r += 16) {
      for (int64_t c = 0; c < width; c += V::kBytes) {
        I a[16], b[16];
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) a[i] = V::loadi(codes + (r + i) * codes_ld + c);
        // Each step rotates the 8 bits (row, column) of a byte's position by one; after four steps rows and columns are exchanged.
        const auto round = [](const I* from, I* to) {
          _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) {
            to[2 * i] = V::interleave_low(from[i], from[i + 8]);
            to[2 * i + 1] = V::interleave_high(from[i], from[i + 8]);
          }
        };
        round(a, b), round(b, a), round(a, b), round(b, a);
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) V::store_parts(out + (c + i) * ld + r, 16 * ld, a[i]);
      }
    }
  }

  template <class Value>
  static void values_of(const ValueRun& t, Value&& value) {
    for (int64_t c = 0; c < t.n; c += kLanes) {
      F v = V::mul(value(t.codes + c), V::set(t.scale[c >> t.shift]));
      if (t.zero != nullptr) v = V::add(V::set(t.zero[c >> t.shift]), v);
      if (t.half)
        V::store_high(static_cast<bf16*>(t.out) + c, bf16_rounded(V::bits(v)));
      else
        V::store(static_cast<float*>(t.out) + c, v);
    }
  }
  static void values(const ValueRun& t) {
    const auto floats = [&]<Float kFormat>() {
      values_of(t, [](const uint8_t* q) { return FloatCoder<V, kFormat>::value(V::load_u8i(q)); });
    };
    with_format(t.element, floats, [&] { values_of(t, [](const uint8_t* q) { return V::from_int(V::load_s8i(q)); }); });
  }

  static void pack4(const uint8_t* codes, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; i += 32, codes += 32, out += 16) {
      const __m256i q = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi8(15));
      const __m256i sums = _mm256_maddubs_epi16(q, _mm256_set1_epi16(0x1001));  // even + 16 odd
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(sums, sums), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
    }
  }

  static constexpr OperandKernels table() {
    using Rows = RowLeaf<V>;
    return {Rows::amax, Rows::row, Rows::panels, Rows::draw16,  load,      rotate, amax_along, amax_across,
            scale,      encode,    fp4_scales,   choice_errors, transpose, values, pack4};
  }
};

}  // namespace halftone::quantize
