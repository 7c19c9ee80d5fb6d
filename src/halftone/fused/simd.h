#pragma once
#include <concepts>

#include "halftone/base/simd.h"

// Sixteen fp32 lanes: one 512-bit register, or two 256-bit registers with AVX2. The row kernels are written once and compiled twice, in the
// namespace of their instruction set. Both variants perform the same operations in the same order, so results do not depend on the machine.
#if defined(__AVX512F__)
#define HALFTONE_SIMD avx512
#else
#define HALFTONE_SIMD v3
#endif

// Vectors span several registers: a call that is not inlined would pass them through memory.
#define HALFTONE_INLINE [[gnu::always_inline]] inline

namespace halftone::HALFTONE_SIMD {

inline constexpr int64_t kLanes = 16, kParts = kLanes / Simd::kLanes;

template <int64_t kRegisters>
struct VecOf {
  Simd::F lo, hi;
};
template <>
struct VecOf<1> {
  Simd::F lo;
};
using Vec = VecOf<kParts>;

// Calls op(first lane, one register of each a) for every register.
template <class Op, class... A>
HALFTONE_INLINE Vec each_at(Op op, A... a) {
  if constexpr (kParts == 1) {
    return {op(0, a.lo...)};
  } else {
    return {op(0, a.lo...), op(8, a.hi...)};
  }
}
template <class Op, class... A>
HALFTONE_INLINE Vec each(Op op, A... a) {
  return each_at([&](int64_t, auto... x) { return op(x...); }, a...);
}
// Lifts the operation of that name from base/simd.h.
#define HALFTONE_EACH(name)                                        \
  template <std::same_as<Vec>... A>                                \
  HALFTONE_INLINE Vec name(A... a) {                               \
    return each([](auto... x) { return Simd::name(x...); }, a...); \
  }
HALFTONE_EACH(fma)
HALFTONE_EACH(neg_fma)
HALFTONE_EACH(fma_sub_add)
HALFTONE_EACH(fma_add_sub)
HALFTONE_EACH(sqrt)
HALFTONE_EACH(max)
HALFTONE_EACH(min)
HALFTONE_EACH(max_abs)
HALFTONE_EACH(swap_neighbours)
#undef HALFTONE_EACH
HALFTONE_INLINE Vec operator+(Vec a, Vec b) { return each(Simd::add, a, b); }
HALFTONE_INLINE Vec operator-(Vec a, Vec b) { return each(Simd::sub, a, b); }
HALFTONE_INLINE Vec operator*(Vec a, Vec b) { return each(Simd::mul, a, b); }
HALFTONE_INLINE Vec operator/(Vec a, Vec b) { return each(Simd::div, a, b); }

HALFTONE_INLINE Vec set1(float x) {
  return each_at([&](int64_t) { return Simd::set(x); });
}
HALFTONE_INLINE Vec zero() { return set1(0.0f); }
// a where !(x < limit), else 0; keeps NaN.
HALFTONE_INLINE Vec zero_below(Vec a, Vec x, Vec limit) {
  return each([](auto a, auto x, auto limit) { return Simd::only(Simd::not_less(x, limit), a); }, a, x, limit);
}
// 2^(b - 127), with b the low 8 bits of `magic`; its bit 8 is 0.
HALFTONE_INLINE Vec power_of_two(Vec magic) {
  return each([](auto x) { return Simd::floats(Simd::shl<23>(Simd::bits(x))); }, magic);
}

template <class T>
struct Type {
  using type = T;
};
// Calls f(Type<T>{}) with the element type of an activation, bf16 or f32 (checked by the callers).
template <class F>
void with_float(DType t, F&& f) {
  if (t == DType::bf16) {
    f(Type<bf16>{});
  } else {
    f(Type<float>{});
  }
}

// Active lanes of a vector: all, or the first n at the end of a row.
struct All {};
struct First {
  int64_t n;
};
template <class T>
HALFTONE_INLINE Vec load(const T* p, All = {}) {
  return each_at([&](int64_t at) { return Simd::load(p + at); });
}
template <class T>
HALFTONE_INLINE Vec load(const T* p, First lanes) {
  return each_at([&](int64_t at) { return Simd::load(p + at, lanes.n - at); });
}
template <class T, std::same_as<Vec> V>
HALFTONE_INLINE void store(T* p, V a, All = {}) {
  if constexpr (kParts == 1) {
    Simd::store(p, a.lo);
  } else {
    Simd::store_two(p, a.lo, a.hi);
  }
}
template <class T, std::same_as<Vec> V>
HALFTONE_INLINE void store(T* p, V a, First lanes) {
  Simd::store(p, a.lo, lanes.n);
  if constexpr (kParts == 2) Simd::store(p + 8, a.hi, lanes.n - 8);
}
// a0 a0 a1 a1 .. a7 a7
HALFTONE_INLINE Vec load_twice(const float* p) {
  return each_at([&](int64_t at) { return Simd::load_twice(p + at / 2); });
}
// a in active lanes, `fill` in the others.
HALFTONE_INLINE Vec keep(Vec a, All, Vec) { return a; }
HALFTONE_INLINE Vec keep(Vec a, First lanes, Vec fill) {
  return each_at([&](int64_t at, auto x, auto y) { return Simd::select(Simd::first(lanes.n - at), x, y); }, a, fill);
}

// Calls f(i, lanes) for i = begin, begin + 16, ...; lanes is All, or First at the end.
template <class F>
void each_vector(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, All{});
  if (i < end) f(i, First{end - i});
}
// each_vector with a compile-time slot 0 .. 3: one accumulator per slot, so that additions are independent.
template <class F>
void each_vector_slots(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    f(i, All{}, 0);
    f(i + kLanes, All{}, 1);
    f(i + 2 * kLanes, All{}, 2);
    f(i + 3 * kLanes, All{}, 3);
  }
  for (; i + kLanes <= n; i += kLanes) f(i, All{}, 0);
  if (i < n) f(i, First{n - i}, 1);
}

// Reduces the registers to one with op, in the order of Simd's lane reductions.
template <class Op, std::same_as<Vec> V>
HALFTONE_INLINE Simd::F fold(V a, Op op) {
  if constexpr (kParts == 1) {
    return a.lo;
  } else {
    return op(a.lo, a.hi);
  }
}
HALFTONE_INLINE float reduce_add(Vec a) { return Simd::sum(fold(a, Simd::add)); }
HALFTONE_INLINE float reduce_max(Vec a) { return Simd::max_of(fold(a, Simd::max)); }
// Raises *to, shared between threads, to the maximum of the lanes' bits.
HALFTONE_INLINE void raise_to(uint32_t* to, Vec bits) {
  const uint32_t largest = Simd::max_of(Simd::bits(fold(bits, Simd::max_abs)));
  uint32_t known = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (known < largest && !__atomic_compare_exchange_n(to, &known, largest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

// Sixteen fp64 lanes, for long sums.
struct Vec64 {
  Simd::D v[2 * kParts]{};
};
// sum + x * x; the product is exact in fp64.
template <std::same_as<Vec> V>
HALFTONE_INLINE Vec64 add_square(Vec64 sum, V x) {
  Simd::add_square(sum.v, x.lo);
  if constexpr (kParts == 2) Simd::add_square(sum.v + 2, x.hi);
  return sum;
}
// Sum of the 16 lanes in the order of reduce_add.
HALFTONE_INLINE double reduce_add(const Vec64& a) {
  double lane[kLanes];
  __builtin_memcpy(lane, a.v, sizeof lane);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// e^x for x in [-87.3, 88.37], clamped to these bounds; NaN stays. x = n ln 2 + r with |r| <= ln 2 / 2, e^r = 1 + r + r^2 q(r) with q of
// degree 4 fitted for the smallest maximum relative error (3e-9); total error about 1 ulp. Adding 1.5 * 2^23 + 127 rounds x / ln 2 to the
// integer n and leaves n + 127, the exponent field of 2^n, in the low bits.
inline constexpr float kExpLow = -87.3f, kExpHigh = 88.37f;
HALFTONE_INLINE Vec exp_bounded(Vec x) {
  const Vec shift = set1(0x1.8p23f + 127), bounded = min(set1(kExpHigh), max(set1(kExpLow), x));
  const Vec magic = fma(bounded, set1(1.44269504f), shift), n = magic - shift;
  const Vec r = neg_fma(n, set1(-2.12194440e-4f), neg_fma(n, set1(0.693359375f), bounded));
  Vec e = set1(0x1.6a2352p-10f);
  e = fma(e, r, set1(0x1.123a6cp-7f));
  e = fma(e, r, set1(0x1.5558f4p-5f));
  e = fma(e, r, set1(0x1.55549p-3f));
  e = fma(e, r, set1(0x1.fffffcp-2f));
  e = fma(e, r, set1(1.0f));
  e = fma(e, r, set1(1.0f));
  return e * power_of_two(magic);
}
// exp_bounded, but 0 below the range.
HALFTONE_INLINE Vec exp(Vec x) { return zero_below(exp_bounded(x), x, set1(kExpLow)); }

// 1 / (1 + e^-x)
HALFTONE_INLINE Vec sigmoid(Vec x) { return set1(1.0f) / (set1(1.0f) + exp_bounded(zero() - x)); }

}  // namespace halftone::HALFTONE_SIMD
