#pragma once
#include <cstdint>

// Operands and GEMMs of the blocked algorithm for CPUs without matrix tiles. GEMM: C[m x n] (+)= A[m x k] B[k x n], C fp32. A is row-major.
// B is stored in dwords: kPair consecutive k of one column share a dword (bf16: two, as bf16 dot instructions and tiles require; fp32:
// one); rows of dwords follow each other.
namespace halftone::attention {
namespace {

enum class Start { zero, add, columns };  // initial C: zero, its old value, or bias[column]

template <class P, Start kStart>
void gemm_broadcast(int m, int n, int k, const typename P::T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                    const float* bias);

// 2^x for x in [-126, 127]: adding 1.5 * 2^23 leaves n = round(x) in the low bits of the sum; the rest is a minimax polynomial on [-1/2,
// 1/2], relative error 8e-8.
template <class V>
typename V::F exp2_of(typename V::F x) {
  using F = typename V::F;
  const F magic = V::set(12582912.0f), n = V::add(x, magic), r = V::sub(x, V::sub(n, magic));
  F y = V::fma(V::set(0.00132764719f), r, V::set(0.00967554133f));
  y = V::fma(y, r, V::set(0.0555071327f));
  y = V::fma(y, r, V::set(0.240221197f));
  y = V::fma(y, r, V::set(0.693146967f));
  y = V::fma(y, r, V::set(1.00000007f));
  return V::floats(V::addi(V::bits(y), V::template shl<23>(V::bits(n))));
}

// x where lo[lane] <= key <= hi[lane], else `other`.
template <class V>
typename V::F keep_seen(typename V::F x, int key, const int32_t* lo, const int32_t* hi, typename V::F other = V::zero()) {
  const typename V::I k = V::seti(static_cast<uint32_t>(key));
  return V::select(V::lt(k, V::loadi(lo)) | V::lt(V::loadi(hi), k), other, x);
}

// fp32 operands, one FMA per product. kRows x 2 vectors of C stay in registers.
template <class V, int kRegisterRows>
struct Fp32 : V {
  using typename V::F;
  using typename V::I;
  using T = float;
  using B = F;
  static constexpr int kPair = 1, kRows = kRegisterRows;
  static constexpr int kAlign = 2 * V::kLanes;  // alignment of every m, n and k

  // Exponents: x represents 2^(x / kUnit), shifted by kOne; kLowest is the smallest usable value.
  static constexpr float kUnit = 1, kOne = 0, kLowest = -126;
  static F whole(F x) { return x; }  // rounds so that an exponent can be subtracted exactly

  static B load_b(const uint32_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static B broadcast(const T* p) { return V::set(*p); }
  static F multiply_add(F c, B a, B b) { return V::fma(a, b, c); }
  static F load_operand(const T* p) { return V::load(p); }
  static F abs_dot(F c, const uint32_t* q, const float* k) { return V::fma(V::abs(load_b(q)), V::set(*k), c); }

  // Powers of the exponents x of keys key, key + 1 as rows of a B operand, added to sums; zero outside [lo, hi] if kMasked.
  template <bool kMasked>
  static void weights(uint32_t* dst, int64_t ld, const F (&x)[2], int key, const int32_t* lo, const int32_t* hi, F (&sums)[2]) {
    for (int i = 0; i < 2; ++i) {
      F y = exp2_of<V>(x[i]);
      if constexpr (kMasked) y = keep_seen<V>(y, key + i, lo, hi);
      sums[i] = V::add(sums[i], y);
      V::store(reinterpret_cast<float*>(dst) + i * ld, y);
    }
  }
  // Two keys by two vectors of queries: probabilities from exponents, times dp, both as A rows. The B operand is identical.
  template <bool kMasked>
  static void gradients(T* prob, T* ds, uint32_t* /*pairs*/, const F (&x)[4], const float* dp, int key, const int32_t* lo,
                        const int32_t* hi) {
    for (int i = 0; i < 4; ++i) {
      const int at = i * V::kLanes;
      F y = exp2_of<V>(x[i]);
      if constexpr (kMasked) y = keep_seen<V>(y, key + i / 2, lo + i % 2 * V::kLanes, hi + i % 2 * V::kLanes);
      V::store(prob + at, y);
      V::store(ds + at, V::mul(y, V::load(dp + i * V::kLanes)));
    }
  }
  static constexpr int column_of(int place) { return place; }

  static void begin() {}
  static void end() {}
  template <Start kStart>
  static void gemm(int m, int n, int k, const T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, const float* bias) {
    gemm_broadcast<Fp32, kStart>(m, n, k, a, lda, b, ldb, c, ldc, bias);
  }
};

// Layout of B: see above; m is a multiple of P::kRows, n of 2 vectors, k of P::kPair.
template <class P, Start kStart>
void gemm_broadcast(int m, int n, int k, const typename P::T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                    const float* bias) {
  constexpr int kLanes = P::kLanes, kRows = P::kRows;
  for (int j = 0; j < n; j += 2 * kLanes) {
    for (int i = 0; i < m; i += kRows) {
      typename P::F sum[kRows][2];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          if constexpr (kStart == Start::zero) sum[r][v] = P::set(0);
          if constexpr (kStart == Start::add) sum[r][v] = P::load(c + (i + r) * ldc + j + v * kLanes);
          if constexpr (kStart == Start::columns) sum[r][v] = P::load(bias + j + v * kLanes);
        }
      }
      const typename P::T* a_row = a + i * lda;
      const uint32_t* b_row = b + j;
      for (int s = 0; s < k; s += P::kPair, b_row += ldb) {
        const typename P::B b0 = P::load_b(b_row), b1 = P::load_b(b_row + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const typename P::B x = P::broadcast(a_row + r * lda + s);
          sum[r][0] = P::multiply_add(sum[r][0], x, b0);
          sum[r][1] = P::multiply_add(sum[r][1], x, b1);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        P::store(c + (i + r) * ldc + j, sum[r][0]);
        P::store(c + (i + r) * ldc + j + kLanes, sum[r][1]);
      }
    }
  }
}

}  // namespace
}  // namespace halftone::attention
