#pragma once
#include <cstdint>

// What the products of the blocked algorithm read and how they are computed, for processors without matrix tiles.
// A product is C[m x n] (+)= A[m x k] B[k x n], C fp32. A is row-major. B is stored in dwords: kPair consecutive k of one
// column share a dword (bf16: two, as the bf16 dot instructions and tiles want it; fp32: one), rows of dwords follow.
namespace halftone::attention {
namespace {

enum class Start { zero, add, columns };  // C starts at zero, at its old value, at bias[column]

template <class P, Start kStart>
void gemm_broadcast(int m, int n, int k, const typename P::T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                    const float* bias);

// fp32 operands, one fused multiply-add per product. kRows x 2 vectors of C stay in registers.
template <class V, int kRegisterRows>
struct Fp32 : V {
  using typename V::F;
  using typename V::U;
  using T = float;
  using B = F;
  static constexpr int kPair = 1, kRows = kRegisterRows;
  static constexpr bool kPrecise = true;
  static constexpr int kAlign = 2 * V::kLanes;  // of every m, n and k
  static B load_b(const uint32_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static B broadcast(const T* p) { return V::set1(*p); }
  static F multiply_add(F c, B a, B b) { return V::fma(a, b, c); }
  static F load_operand(const T* p) { return V::load(p); }
  static F abs_dot(F c, const uint32_t* q, const float* k) { return V::fma(V::abs(load_b(q)), V::set1(*k), c); }
  // Rows r and r + 1 of a B operand, one vector of columns.
  static void store_pair(uint32_t* dst, int64_t ld, F row0, F row1) {
    V::store(reinterpret_cast<float*>(dst), row0);
    V::store(reinterpret_cast<float*>(dst + ld), row1);
  }
  // Two rows of two vectors as A rows (and as a B operand, which is the same here).
  static void store_rows(T* dst, int64_t ld, const F (&x)[4], const uint32_t* /*pairs*/) {
    V::store(dst, x[0]), V::store(dst + V::kLanes, x[1]);
    V::store(dst + ld, x[2]), V::store(dst + ld + V::kLanes, x[3]);
  }
  static void begin() {}
  static void end() {}
  template <Start kStart>
  static void gemm(int m, int n, int k, const T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, const float* bias) {
    gemm_broadcast<Fp32, kStart>(m, n, k, a, lda, b, ldb, c, ldc, bias);
  }
};

// See the comment on B above; m a multiple of P::kRows, n of 2 vectors, k of P::kPair.
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
          if constexpr (kStart == Start::zero) sum[r][v] = P::set1(0);
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
