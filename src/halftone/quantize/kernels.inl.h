// Inner loops of the quantisers over a vector type V, Simd. V is local to its file, so instruction sets share no instantiation.
#pragma once
#include <bit>

#include "halftone/base/simd.h"
#include "halftone/quantize/kernels.h"

namespace halftone::quantize {

template <class V, class T>
struct Amax {
  using I = typename V::I;
  static constexpr int64_t kWidth = V::kBytes / sizeof(T);
  static constexpr bool kHalf = sizeof(T) == 2;

  static I abs_bits(const T* p) { return V::and_(V::loadi(p), V::seti(kHalf ? 0x7FFF7FFFu : 0x7FFFFFFFu)); }
  static I max(I a, I b) { return kHalf ? V::maxu16(a, b) : V::maxu(a, b); }
  static void max_into(uint32_t* p, I a) {
    if constexpr (kHalf) {
      Amax<V, float>::max_into(p, V::bits(V::widen(V::lower(a))));
      Amax<V, float>::max_into(p + V::kLanes, V::bits(V::widen(V::upper(a))));
    } else {
      V::store(p, V::maxu(V::loadi(p), a));
    }
  }
  static uint32_t reduce(I a) {  // as fp32 bits
    if constexpr (kHalf) a = V::template shl<16>(V::maxu(V::and_(a, V::seti(0xFFFF)), V::template shr<16>(a)));
    return V::max_of(a);
  }
  static uint32_t bits(const T& x) {
    if constexpr (kHalf)
      return static_cast<uint32_t>(x.bits & 0x7FFF) << 16;
    else
      return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  }

  // kRows rows at once, so that col_amax is read and written only once for all of them.
  template <int kRows>
  static void rows(const T* x, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax) {
    I row[kRows];
    _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) row[i] = V::zeroi();
    int64_t c = 0;
    for (; c + kWidth <= cols; c += kWidth) {
      I all = V::zeroi();
      _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) {
        const auto a = abs_bits(x + i * ld + c);
        row[i] = max(row[i], a);
        all = max(all, a);
      }
      if (col_amax != nullptr) max_into(col_amax + c, all);
    }
    uint32_t result[kRows];
    _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) result[i] = reduce(row[i]);
    for (; c < cols; ++c) {
      _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) {
        const uint32_t a = bits(x[i * ld + c]);
        if (a > result[i]) result[i] = a;
        if (col_amax != nullptr && a > col_amax[c]) col_amax[c] = a;
      }
    }
    if (row_amax != nullptr) _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) row_amax[i] = result[i];
  }

  static void run(const T* x, int64_t n, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax) {
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) rows<4>(x + r * ld, cols, ld, row_amax == nullptr ? nullptr : row_amax + r, col_amax);
    for (; r < n; ++r) rows<1>(x + r * ld, cols, ld, row_amax == nullptr ? nullptr : row_amax + r, col_amax);
  }
};

template <class V>
struct Leaf {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int64_t kLanes = V::kLanes;

  static void amax(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax) {
    if (type == DType::f32)
      Amax<V, float>::run(static_cast<const float*>(x), rows, cols, ld, row_amax, col_amax);
    else
      Amax<V, bf16>::run(static_cast<const bf16*>(x), rows, cols, ld, row_amax, col_amax);
  }

  // Stochastic int8: up <=> u + 1/2 < (y - floor(y)) * 2^16. In the form y * 2^16 > floor(y) * 2^16 + (u + 1/2) every operation is exact in
  // fp32 (24 bits suffice for |floor(y)| <= 128); y - floor(y) alone is not.
  static I int8_sr(F y, const uint16_t* random) {
    const F k = V::floor(y), u = V::add(V::load_u16(random), V::set(0.5f));
    const F up = V::only(V::gt(V::mul(y, V::set(65536.0f)), V::add(V::mul(k, V::set(65536.0f)), u)), V::set(1.0f));
    // NaN must stay NaN (conversion then gives INT_MIN, whose low byte is 0): hence it is the second operand.
    return V::rint(V::min(V::set(127.0f), V::max(V::set(-127.0f), V::add(k, up))));
  }
  // Nearest: |x * inv| never reaches 127.5, so no clip is needed.
  template <bool kStochastic, class T>
  static I int8(const T* x, F inv, const uint16_t* random) {
    const F y = V::mul(V::load(x), inv);
    if constexpr (kStochastic)
      return int8_sr(y, random);
    else
      return V::rint(y);
  }

  template <bool kStochastic, class T>
  static void int8_row_of(const T* x, int64_t n, float inv, const uint16_t* random, int8_t* out) {
    const F scale = V::set(inv);
    int64_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
      I q[4];
      _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) q[i] =
          int8<kStochastic>(x + c + i * kLanes, scale, kStochastic ? random + c + i * kLanes : nullptr);
      V::store_s8(out + c, q);
    }
    for (; c < n; ++c) out[c] = int8_one(to_float(x[c]) * inv, kStochastic ? random + c : nullptr);
  }
  static void int8_row(const void* x, DType type, int64_t n, float inv, const uint16_t* random, int8_t* out) {
    const auto go = [&](const auto* p) {
      if (random != nullptr)
        int8_row_of<true>(p, n, inv, random, out);
      else
        int8_row_of<false>(p, n, inv, random, out);
    };
    if (type == DType::f32)
      go(static_cast<const float*>(x));
    else
      go(static_cast<const bf16*>(x));
  }

  template <bool kStochastic, class T>
  static void int8_quads_of(const T* x, int64_t ld, int64_t quads, int64_t columns, const float* inv, const uint16_t* random,
                            int64_t random_ld, std::byte* out, int64_t stride) {
    for (int64_t q = 0; q < quads; ++q) {
      for (int64_t h = 0; h < columns; h += kLanes) {
        const F scale = V::load(inv + h);
        I v[4];
        _Pragma("GCC unroll 8") for (int64_t i = 0; i < 4; ++i) {
          const int64_t r = 4 * q + i;
          v[i] = int8<kStochastic>(x + r * ld + h, scale, kStochastic ? random + r * random_ld + h : nullptr);
        }
        V::store_quads(out + h / 16 * stride + q * 64 + h % 16 * 4, v);
      }
    }
  }
  static void int8_quads(const void* x, DType type, int64_t ld, int64_t quads, int64_t panels, const float* inv, const uint16_t* random,
                         int64_t random_ld, void* out, int64_t stride) {
    const auto go = [&](const auto* p) {
      auto* o = static_cast<std::byte*>(out);
      if (random != nullptr)
        int8_quads_of<true>(p, ld, quads, panels * 16, inv, random, random_ld, o, stride);
      else
        int8_quads_of<false>(p, ld, quads, panels * 16, inv, random, random_ld, o, stride);
    };
    if (type == DType::f32)
      go(static_cast<const float*>(x));
    else
      go(static_cast<const bf16*>(x));
  }

  // e4m3 code (low byte) and fp32 bits of its value, both signed, for y in [-448, 448].
  struct E4m3 {
    I code, value;
  };
  static E4m3 e4m3(F y) {
    const I bits = V::bits(y), sign = V::and_(bits, V::seti(0x80000000u)), a = V::and_(bits, V::seti(0x7FFFFFFFu));
    // Normal results: round the mantissa to 3 bits in place, ties to even.
    const I r = V::addi(V::addi(a, V::seti(0x7FFFFu)), V::and_(V::template shr<20>(a), V::seti(1)));
    const I normal = V::subi(V::template shr<20>(r), V::seti((127 - 7) << 3)), normal_value = V::and_(r, V::seti(0xFFF00000u));
    // Below 2^-6 the quantum is 2^-9.
    const I k = V::rint(V::mul(V::floats(a), V::set(512.0f)));
    const I small_value = V::bits(V::mul(V::from_int(k), V::set(0x1p-9f)));
    const typename V::M small = V::lt(a, V::seti(0x3C800000u));
    return {V::or_(V::select(small, k, normal), V::template shr<24>(sign)), V::or_(V::select(small, small_value, normal_value), sign)};
  }

  template <class T>
  static void e4m3_row_of(const T* x, int64_t n, const float* inv, int64_t step, uint8_t* codes, bf16* values) {
    int64_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
      I q[4], v[4];
      _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) {
        const F scale = step == 0 ? V::set(*inv) : V::load(inv + c + i * kLanes);
        const E4m3 e = e4m3(V::mul(V::load(x + c + i * kLanes), scale));
        q[i] = e.code, v[i] = e.value;
      }
      if (codes != nullptr) V::store_u8(codes + c, q);
      if (values != nullptr) _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) V::store_high(values + c + i * kLanes, v[i]);
    }
    for (; c < n; ++c) {
      const uint8_t code = e4m3_one(to_float(x[c]) * inv[c * step], values == nullptr ? nullptr : values + c);
      if (codes != nullptr) codes[c] = code;
    }
  }
  static void e4m3_row(const void* x, DType type, int64_t n, const float* inv, int64_t inv_step, uint8_t* codes, bf16* values) {
    if (type == DType::f32)
      e4m3_row_of(static_cast<const float*>(x), n, inv, inv_step, codes, values);
    else
      e4m3_row_of(static_cast<const bf16*>(x), n, inv, inv_step, codes, values);
  }

  template <class T>
  static void e4m3_pairs_of(const T* x, int64_t ld, int64_t pairs, int64_t columns, const float* inv, std::byte* out, int64_t stride) {
    for (int64_t q = 0; q < pairs; ++q) {
      for (int64_t h = 0; h < columns; h += kLanes) {
        const F scale = V::load(inv + h);
        const I lo = e4m3(V::mul(V::load(x + 2 * q * ld + h), scale)).value,
                hi = e4m3(V::mul(V::load(x + (2 * q + 1) * ld + h), scale)).value;
        V::store(out + h / 16 * stride + q * 64 + h % 16 * 4, V::or_(V::template shr<16>(lo), hi));
      }
    }
  }
  static void e4m3_pairs(const void* x, DType type, int64_t ld, int64_t pairs, int64_t panels, const float* inv, void* out,
                         int64_t stride) {
    if (type == DType::f32)
      e4m3_pairs_of(static_cast<const float*>(x), ld, pairs, panels * 16, inv, static_cast<std::byte*>(out), stride);
    else
      e4m3_pairs_of(static_cast<const bf16*>(x), ld, pairs, panels * 16, inv, static_cast<std::byte*>(out), stride);
  }

  // Philox on kLanes counters; a counter's four words are the 8 draws of its group in memory order.
  static void random16(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, int64_t groups, uint16_t* out) {
    int64_t i = 0;
    for (; i + kLanes <= groups; i += kLanes) {
      const auto first = static_cast<uint64_t>(g + i);
      if ((first & 0xFFFFFFFFu) > 0xFFFFFFFFu - static_cast<uint64_t>(kLanes)) {  // the low word would carry inside the vector
        for (int64_t j = i; j < i + kLanes; ++j) random16_group(key, step, micro, g + j, out + 8 * j);
        continue;
      }
      I c[4] = {V::addi(V::seti(static_cast<uint32_t>(first)), V::iota()), V::seti(static_cast<uint32_t>(first >> 32)), V::seti(step),
                V::seti(micro)};
      PhiloxKey k = key;
      for (int round = 0; round < 10; ++round) {
        I alo, ahi, blo, bhi;
        V::mul_wide(c[0], 0xD2511F53u, alo, ahi);
        V::mul_wide(c[2], 0xCD9E8D57u, blo, bhi);
        const I c0 = V::xor_(V::xor_(bhi, c[1]), V::seti(k.lo)), c2 = V::xor_(V::xor_(ahi, c[3]), V::seti(k.hi));
        c[0] = c0, c[1] = blo, c[2] = c2, c[3] = alo;
        k.lo += 0x9E3779B9u, k.hi += 0xBB67AE85u;
      }
      V::store_transposed(out + 8 * i, c);
    }
    for (; i < groups; ++i) random16_group(key, step, micro, g + i, out + 8 * i);
  }
  static constexpr Kernels table() { return {amax, int8_row, int8_quads, e4m3_row, e4m3_pairs, random16}; }
};

}  // namespace halftone::quantize
