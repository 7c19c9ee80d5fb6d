// Inner loops of operand_kernels.h for copies with one scale per row: int8, and e4m3 with its values in bf16. They read the matrix itself,
// not a tile of it in fp32.
#pragma once
#include <bit>
#include <cstring>

#include "halftone/base/simd.h"
#include "halftone/quantize/operand_kernels.h"

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
    _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) row_amax[i] = reduce(row[i]);
    for (; c < cols; ++c) {
      _Pragma("GCC unroll 8") for (int i = 0; i < kRows; ++i) {
        const uint32_t a = bits(x[i * ld + c]);
        if (a > row_amax[i]) row_amax[i] = a;
        if (col_amax != nullptr && a > col_amax[c]) col_amax[c] = a;
      }
    }
  }

  static void run(const T* x, int64_t n, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax) {
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) rows<4>(x + r * ld, cols, ld, row_amax + r, col_amax);
    for (; r < n; ++r) rows<1>(x + r * ld, cols, ld, row_amax + r, col_amax);
  }
};

template <class V>
struct RowLeaf {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int64_t kLanes = V::kLanes;

  static void amax(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax) {
    typed(x, type, [&]<class T>(const T* p) { Amax<V, T>::run(p, rows, cols, ld, row_amax, col_amax); });
  }

  struct Encoded {
    I code, value;  // low byte; e4m3: the fp32 bits of its value
  };
  // Integers: clipping first changes no result and keeps the rounding exact. Stochastic: up <=> y 2^16 > floor(y) 2^16 + u + 1/2, exact in
  // fp32 for |y| <= 128; y - floor(y) alone is not.
  template <bool kStochastic>
  static I int_code(F y, I u, F low, F high) {
    const F clipped = V::min(high, V::max(low, y));
    if constexpr (kStochastic) {
      const F k = V::floor(clipped), threshold = V::add(V::from_int(u), V::set(0.5f));
      return V::rint(
          V::add(k, V::only(V::gt(V::mul(clipped, V::set(65536.0f)), V::add(V::mul(k, V::set(65536.0f)), threshold)), V::set(1.0f))));
    } else {
      return V::rint(clipped);
    }
  }

  template <bool kStochastic>
  struct Int8 {
    static constexpr bool kValues = false, kDraws = kStochastic;
    static Encoded encode(F y, const uint16_t* draws) {
      if constexpr (kStochastic) return {int_code<true>(y, V::load_u16i(draws), V::set(-127.0f), V::set(127.0f)), V::zeroi()};
      return {V::rint(y), V::zeroi()};  // |y| <= 127.5 needs no clip
    }
    static void store_codes(uint8_t* p, const I* q) { V::store_s8(reinterpret_cast<int8_t*>(p), q); }
    static void store_group(void* p, const I* q) { V::store_quads(p, q); }  // the bytes of four rows
  };
  struct E4m3 {
    static constexpr bool kValues = true, kDraws = false;
    static Encoded encode(F y, const uint16_t*) {  // y in [-448, 448]
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
    static void store_codes(uint8_t* p, const I* q) { V::store_u8(p, q); }
    static void store_group(void* p, const I* v) { V::store(p, V::or_(V::template shr<16>(v[0]), v[1])); }  // bf16 of two rows
  };
  // Calls f(encoder, x).
  template <class Call>
  static void encoding(Element element, const void* x, DType type, bool stochastic, Call&& f) {
    typed(x, type, [&](const auto* p) {
      if (element != Element::int8)
        f(E4m3{}, p);
      else if (stochastic)
        f(Int8<true>{}, p);
      else
        f(Int8<false>{}, p);
    });
  }

  template <class E, bool kCodes, bool kValues, class T>
  static void row_of(const T* x, int64_t n, float inv, const uint16_t* draws, uint8_t* codes, bf16* values) {
    constexpr int64_t kStep = 4 * kLanes;
    const F by = V::set(inv);
    int64_t c = 0;
    for (; c + kStep <= n; c += kStep) {
      I q[4], v[4];
      _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) {
        const int64_t at = c + i * kLanes;
        const Encoded e = E::encode(V::mul(V::load(x + at), by), E::kDraws ? draws + at : nullptr);
        q[i] = e.code, v[i] = e.value;
      }
      if constexpr (kCodes) E::store_codes(codes + c, q);
      if constexpr (kValues) _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) V::store_high(values + c + i * kLanes, v[i]);
    }
    if (c < n)
      row_tail<E, kCodes, kValues>(x + c, n - c, inv, E::kDraws ? draws + c : nullptr, kCodes ? codes + c : nullptr,
                                   kValues ? values + c : nullptr);
  }
  // Out of line, so that whole rows need no aligned stack.
  template <class E, bool kCodes, bool kValues, class T>
  [[gnu::noinline]] static void row_tail(const T* x, int64_t n, float inv, const uint16_t* draws, uint8_t* codes, bf16* values) {
    constexpr int64_t kStep = 4 * kLanes;
    alignas(64) T padded[kStep];
    alignas(64) uint8_t last[kStep];
    alignas(64) bf16 last_values[kStep];
    std::memset(static_cast<void*>(padded), 0, sizeof padded);
    std::memcpy(static_cast<void*>(padded), x, static_cast<size_t>(n) * sizeof(T));
    row_of<E, kCodes, kValues>(padded, kStep, inv, draws, last, last_values);
    if constexpr (kCodes) std::memcpy(codes, last, static_cast<size_t>(n));
    if constexpr (kValues) std::memcpy(static_cast<void*>(values), last_values, static_cast<size_t>(n) * sizeof(bf16));
  }
  static void row(Element element, const void* x, DType type, int64_t n, float inv, const uint16_t* draws, uint8_t* codes, bf16* values) {
    encoding(element, x, type, draws != nullptr, [&]<class E>(E, const auto* p) {
      if constexpr (E::kValues) {
        if (codes == nullptr) return row_of<E, false, true>(p, n, inv, draws, codes, values);
        if (values != nullptr) return row_of<E, true, true>(p, n, inv, draws, codes, values);
      }
      row_of<E, true, false>(p, n, inv, draws, codes, values);
    });
  }

  template <class E, class T>
  static void panels_of(const T* x, int64_t ld, int64_t groups, int64_t columns, const float* inv, const uint16_t* draws, int64_t draws_ld,
                        std::byte* out, int64_t stride) {
    constexpr int64_t kGroup = E::kValues ? 2 : 4;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t h = 0; h < columns; h += kLanes) {
        const F by = V::load(inv + h);
        I v[kGroup];
        _Pragma("GCC unroll 8") for (int64_t i = 0; i < kGroup; ++i) {
          const int64_t r = kGroup * g + i;
          const Encoded e = E::encode(V::mul(V::load(x + r * ld + h), by), E::kDraws ? draws + r * draws_ld + h : nullptr);
          v[i] = E::kValues ? e.value : e.code;
        }
        E::store_group(out + h / 16 * stride + g * 64 + h % 16 * 4, v);
      }
    }
  }
  static void panels(Element element, const void* x, DType type, int64_t ld, int64_t groups, int64_t columns, const float* inv,
                     const uint16_t* draws, int64_t draws_ld, std::byte* out, int64_t stride) {
    encoding(element, x, type, draws != nullptr,
             [&]<class E>(E, const auto* p) { panels_of<E>(p, ld, groups, columns, inv, draws, draws_ld, out, stride); });
  }

  // Philox on kLanes counters; a counter's four words are the 8 draws of its group in memory order.
  static void draw16(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, int64_t groups, uint16_t* out) {
    for (int64_t i = 0; i < groups; i += kLanes) {
      const auto first = static_cast<uint64_t>(g + i);
      const auto low = static_cast<uint32_t>(first);
      const auto ordered = [](I a) { return V::xor_(a, V::seti(0x80000000u)); };  // unsigned order as signed order
      I c[4] = {V::addi(V::seti(low), V::iota()), V::seti(static_cast<uint32_t>(first >> 32)), V::seti(step), V::seti(micro)};
      c[1] = V::addi(c[1], V::one_if(V::lt(ordered(c[0]), ordered(V::seti(low)))));  // the carry
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
  }
};

}  // namespace halftone::quantize
