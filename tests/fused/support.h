#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "halftone/base/cpu.h"
#include "halftone/base/philox.h"
#include "halftone/fused/kernels.h"
#include "halftone/fused/ref.h"

namespace halftone {

// A matrix whose rows are `pad` elements apart; the gaps hold a pattern that must not change.
struct Matrix {
  static constexpr float kGap = 77.0f;
  int64_t rows, cols, stride;
  DType type;
  std::vector<float> f;
  std::vector<bf16> b;

  Matrix(int64_t rows_, int64_t cols_, DType type_, int64_t pad = 3)
      : rows(rows_), cols(cols_), stride(cols_ + pad), type(type_), f(static_cast<size_t>(rows * stride), kGap), b(f.size(), bf16(kGap)) {}
  void* data() { return type == DType::bf16 ? static_cast<void*>(b.data()) : f.data(); }
  double at(int64_t r, int64_t c) { return element_at(data(), type, r * stride + c); }
  void set(int64_t r, int64_t c, float x) {
    f[static_cast<size_t>(r * stride + c)] = x;
    b[static_cast<size_t>(r * stride + c)] = bf16(x);
  }
  Matrix& randomise(uint64_t seed, float range = 2.0f) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        set(r, c, range * (2 * unit_float(philox(philox_key(seed, "matrix"), static_cast<uint64_t>(r * cols + c))[0]) - 1));
      }
    }
    return *this;
  }
  void expect_gaps_untouched() {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = cols; c < stride; ++c) ASSERT_EQ(at(r, c), kGap) << "row " << r << " gap " << c;
    }
  }
  // Checks every element within relative `tolerance` (plus `absolute`) of the expectation [rows, cols], after rounding to the type.
  void expect_near(const std::vector<double>& expected, double tolerance, double absolute, const std::string& what) {
    ASSERT_EQ(expected.size(), static_cast<size_t>(rows * cols)) << what;
    const double relative = type == DType::bf16 ? 0x1p-8 : tolerance;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const double e = expected[static_cast<size_t>(r * cols + c)];
        ASSERT_NEAR(at(r, c), e, relative * std::abs(e) + absolute) << what << " row " << r << " column " << c;
      }
    }
  }
  bool same_bits(const Matrix& other) const {
    return type == DType::bf16 ? std::memcmp(b.data(), other.b.data(), b.size() * 2) == 0
                               : std::memcmp(f.data(), other.f.data(), f.size() * 4) == 0;
  }
};

// Runs f() with each instruction set of this machine and 1, 2 and 3 threads; f returns bytes that must be equal every time.
template <class F>
void expect_same_everywhere(F&& f) {
  const int before = omp_get_max_threads();
  std::vector<float> first;
  for (const FusedKernels* kernels : {&v3::fused_kernels(), cpu_features().avx512 ? &avx512::fused_kernels() : &v3::fused_kernels()}) {
    for (const int threads : {1, 2, 3}) {
      use_fused_kernels(kernels);
      omp_set_num_threads(threads);
      const std::vector<float> result = f();
      if (first.empty()) first = result;
      EXPECT_TRUE(std::equal(first.begin(), first.end(), result.begin(), result.end(),
                             [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }))
          << threads << " threads";
    }
  }
  use_fused_kernels(nullptr);
  omp_set_num_threads(before);
}

// The amax as bits32(|x|) (QuantizeOperand::amax).
inline uint32_t largest_magnitude(const Matrix& m) {
  uint32_t amax = 0;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      const auto i = static_cast<size_t>(r * m.stride + c);
      const uint32_t bits = m.type == DType::bf16 ? uint32_t{m.b[i].bits} << 16 : std::bit_cast<uint32_t>(m.f[i]);
      amax = std::max(amax, bits & 0x7FFFFFFFu);
    }
  }
  return amax;
}

inline std::vector<float> values(Matrix& m) {
  std::vector<float> out;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) out.push_back(static_cast<float>(m.at(r, c)));
  }
  return out;
}
inline void append(std::vector<float>& to, const std::vector<float>& more) { to.insert(to.end(), more.begin(), more.end()); }

inline const DType kFloatTypes[] = {DType::f32, DType::bf16};
inline const char* name_of(DType t) { return t == DType::bf16 ? "bf16" : "f32"; }

}  // namespace halftone
