#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "halftone/base/dtype.h"
#include "halftone/quantize/isa.h"

namespace halftone::testing {

// 64-byte aligned bytes followed by a guard, so that a write beyond the end is detected.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(bytes), data_(static_cast<size_t>(bytes + 128), std::byte{0xA5}) {}
  std::byte* data() {
    auto* p = data_.data();
    return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  int64_t size() const { return bytes_; }
  bool guard_intact() {
    for (std::byte* p = data() + bytes_; p < data_.data() + data_.size(); ++p)
      if (*p != std::byte{0xA5}) return false;
    return true;
  }

 private:
  int64_t bytes_;
  std::vector<std::byte> data_;
};

// Instruction sets with quantiser code of their own: vnni and amx have none.
inline std::vector<Isa> isas() {
  if (available(Isa::avx512)) return {Isa::v3, Isa::avx512};
  return {Isa::v3};
}

struct Shape {
  int64_t rows, cols, pad;  // row stride = cols + pad
};
inline const std::vector<Shape> kShapes = {{0, 5, 0},    {5, 0, 0},   {1, 1, 0},     {1, 64, 0},    {3, 17, 2},
                                           {17, 100, 0}, {64, 32, 8}, {150, 256, 0}, {67, 1042, 6}, {257, 71, 1}};

enum class Fill { normal, zeros, tiny, spread, nan, inf, ties, outliers };

inline std::vector<float> values(Fill fill, int64_t rows, int64_t ld) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * ld));
  for (size_t i = 0; i < x.size(); ++i) {
    const float v = normal(rng);
    switch (fill) {
      case Fill::zeros:
        x[i] = i % 3 == 0 ? -0.0f : 0.0f;
        break;
      case Fill::tiny:
        x[i] = v * 1e-39f;
        break;
      case Fill::spread:
        x[i] = v * std::exp2(static_cast<float>(static_cast<int>(rng() % 180) - 90));
        break;
      case Fill::ties:
        x[i] = static_cast<float>(static_cast<int>(rng() % 509) - 254) * 0.5f;
        break;
      case Fill::outliers:  // data O of numerics.md 13: one in 200 larger by 100 normal numbers
        x[i] = rng() % 200 == 0 ? v + 100 * normal(rng) : v;
        break;
      default:
        x[i] = v;
    }
  }
  if (!x.empty() && fill == Fill::nan) x[x.size() / 2] = NAN, x[0] = std::bit_cast<float>(0x7F800001u);
  if (!x.empty() && fill == Fill::inf) x[x.size() / 2] = -INFINITY;
  return x;
}

// The same values in the requested element type; a NaN stays NaN.
inline std::vector<std::byte> elements(const std::vector<float>& x, DType type) {
  std::vector<std::byte> out(x.size() * size_of(type) + 1);
  for (size_t i = 0; i < x.size(); ++i) {
    const bf16 half(x[i]);
    if (type == DType::f32)
      std::memcpy(out.data() + 4 * i, &x[i], 4);
    else
      std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}

// Equal bits, any NaN equal to any NaN.
inline bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b)); }

}  // namespace halftone::testing
