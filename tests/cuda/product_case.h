#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/module.h"
#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"
#include "halftone/formats/float_code.h"
#include "halftone/gemm/product.h"

namespace halftone::gemm {

// Device memory with a copy of host bytes.
class Device {
 public:
  Device() = default;
  template <class T>
  explicit Device(const std::vector<T>& host) : bytes_(host.size() * sizeof(T)) {
    if (bytes_ == 0) return;
    EXPECT_EQ(cudaMalloc(&at_, bytes_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(at_, host.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  Device(Device&& o) noexcept { *this = std::move(o); }
  Device& operator=(Device&& o) noexcept {
    std::swap(at_, o.at_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Device() { cudaFree(at_); }
  template <class T>
  std::vector<T> fetch() const {
    std::vector<T> out(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(out.data(), at_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }
  template <class T = void>
  T* get() const {
    return static_cast<T*>(at_);
  }

 private:
  void* at_ = nullptr;
  size_t bytes_ = 0;
};

// A GEMM of the module and its workspace, filled with `fill` before the first call.
template <class P>
class Products {
 protected:
  explicit Products(uint8_t fill = 0) : fill_(fill) {}
  const std::string& missing() const { return module_.reason(); }
  void load(const std::string& name) {
    run_ = module_.function<const char* (*)(const P*, void*)>(name.c_str());
    size_ = module_.function<int64_t (*)(const P*)>((name + "_workspace").c_str());
    ASSERT_NE(run_, nullptr);
    ASSERT_NE(size_, nullptr);
  }
  const char* product(P p, void* stream = nullptr) {
    p.workspace_bytes = size_(&p);
    if (p.workspace_bytes > workspace_bytes_) {
      workspace_ = Device(std::vector<uint8_t>(static_cast<size_t>(p.workspace_bytes), fill_));
      workspace_bytes_ = p.workspace_bytes;
    }
    p.workspace = workspace_.get();
    return run_(&p, stream);
  }
  CudaModule module_;
  const char* (*run_)(const P*, void*) = nullptr;
  int64_t (*size_)(const P*) = nullptr;
  Device workspace_;
  int64_t workspace_bytes_ = 0;

 private:
  uint8_t fill_;
};

// Standard normal numbers, element i of a stream.
inline float normal(PhiloxKey key, uint64_t i) {
  const auto bits = philox(key, i);
  return std::sqrt(-2 * std::log(unit_float(bits[0]) + 0x1p-25f)) * std::cos(6.2831853f * unit_float(bits[1]));
}

// Writes x (40 x for 8 bits) in the operand's type; returns the written value.
inline double write_number(Numbers numbers, float x, uint8_t* at) {
  switch (numbers) {
    case Numbers::f32:
      std::memcpy(at, &x, 4);
      return x;
    case Numbers::bf16: {
      const bf16 h(x);
      std::memcpy(at, &h, 2);
      return to_float(h);
    }
    case Numbers::e4m3:
    case Numbers::e5m2: {
      const Float f = numbers == Numbers::e4m3 ? Float::e4m3 : Float::e5m2;
      *at = encode(f, x * 40);
      return decode(f, *at);
    }
    case Numbers::s8:
      break;
  }
  const auto v = static_cast<int8_t>(std::lrint(std::fmin(std::fmax(x * 40, -127), 127)));
  *at = static_cast<uint8_t>(v);
  return v;
}

// Random scales in [0.5, 1.5) * 2^-6, one per group.
inline std::vector<float> factors(int64_t n, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(n));
  const PhiloxKey key = philox_key(seed, "factors");
  for (size_t i = 0; i < out.size(); ++i) out[i] = (0.5f + unit_float(philox(key, i)[0])) * 0x1p-6f;
  return out;
}

// An operand [rows, k] on the device, and its values on the host.
struct TestOperand {
  int64_t rows = 0, k = 0;
  std::vector<double> values;  // dequantised, [rows, k]
  std::vector<int> integers;   // s8
  std::vector<float> scales;
  float outer = 1;
  Device data, scale_memory, outer_memory, macro_memory;
  ProductOperand operand;
};

struct OperandKind {
  Numbers numbers = Numbers::bf16;
  Scales scales = Scales::none;
  bool transposed = false, outer = false, macro = false, macro_tiles = false;
};

constexpr OperandKind plain(Numbers t, bool transposed = false) { return {t, Scales::none, transposed}; }
constexpr OperandKind scaled(Numbers t, Scales s) { return {t, s}; }
constexpr OperandKind outer(OperandKind k) {
  k.outer = true;
  return k;
}
constexpr OperandKind macro(OperandKind k, bool tiles) {
  k.macro = true, k.macro_tiles = tiles;
  return k;
}
constexpr auto E4 = Numbers::e4m3, E5 = Numbers::e5m2, I8 = Numbers::s8, BF = Numbers::bf16;

inline TestOperand make_operand(const OperandKind& kind, int64_t rows, int64_t k, uint64_t seed) {
  TestOperand t;
  t.rows = rows, t.k = k;
  const int64_t blocks = (k + 127) / 128, row_tiles = (rows + 127) / 128;
  const PhiloxKey key = philox_key(seed, "values");
  const int64_t counts[] = {0, 1, rows, rows * blocks, row_tiles * blocks};
  t.scales = factors(counts[static_cast<int>(kind.scales)], seed);
  std::vector<uint8_t> macro(static_cast<size_t>(kind.macro ? (kind.macro_tiles ? row_tiles : rows) * blocks : 0));
  for (size_t i = 0; i < macro.size(); ++i) macro[i] = static_cast<uint8_t>(philox(key, i, 1)[0]);
  if (kind.outer) t.outer = 0.3f;
  const auto factor = [&](int64_t r, int64_t c) {
    double f = t.outer;
    const int64_t b = c / 128;
    const int64_t at[] = {0, 0, r, r * blocks + b, r / 128 * blocks + b};
    if (kind.scales != Scales::none) f *= t.scales[static_cast<size_t>(at[static_cast<int>(kind.scales)])];
    if (kind.macro) {
      const uint8_t byte = macro[static_cast<size_t>((kind.macro_tiles ? r / 128 : r) * blocks + b)];
      f /= std::bit_cast<float>((static_cast<uint32_t>(byte) << 15) + 0x3F800000u);
    }
    return f;
  };
  const size_t element = kind.numbers == Numbers::f32 ? 4 : kind.numbers == Numbers::bf16 ? 2 : 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * k) * element);
  t.values.resize(static_cast<size_t>(rows * k));
  if (kind.numbers == Numbers::s8) t.integers.resize(t.values.size());
  parallel_for(rows * k, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t at_i = begin; at_i < end; ++at_i) {
      const int64_t r = at_i / k, c = at_i % k;
      const auto i = static_cast<size_t>(at_i);
      const float x = normal(key, i);
      uint8_t* at = &bytes[static_cast<size_t>(kind.transposed ? c * rows + r : r * k + c) * element];
      const double v = write_number(kind.numbers, x, at);
      if (kind.numbers == Numbers::s8) t.integers[i] = static_cast<int>(v);
      t.values[i] = v * factor(r, c);
    }
  });
  t.data = Device(bytes);
  t.scale_memory = Device(t.scales);
  t.operand.numbers = kind.numbers, t.operand.transposed = kind.transposed, t.operand.data = t.data.get();
  t.operand.scales = kind.scales, t.operand.scale = t.scale_memory.get<float>();
  if (kind.outer) t.outer_memory = Device(std::vector<float>{t.outer}), t.operand.outer = t.outer_memory.get<float>();
  if (kind.macro) {
    t.macro_memory = Device(macro);
    t.operand.macro = t.macro_memory.get<uint8_t>(), t.operand.macro_tiles = kind.macro_tiles;
  }
  return t;
}

// Up to `most` rows, spread over the range and including the last ones.
inline std::vector<int64_t> sample_rows(int64_t rows, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min(rows, most); ++i) out.push_back(rows <= most ? i : (i + 1) * rows / most - 1);
  return out;
}

// fp64 product of the dequantised operands: [sampled rows, n].
inline std::vector<double> reference(const TestOperand& a, const TestOperand& b, const std::vector<int64_t>& rows) {
  std::vector<double> out(rows.size() * static_cast<size_t>(b.rows));
  parallel_for(static_cast<int64_t>(out.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double* x = &a.values[static_cast<size_t>(rows[static_cast<size_t>(i / b.rows)] * a.k)];
      const double* y = &b.values[static_cast<size_t>(i % b.rows * a.k)];
      double s[4] = {};
      for (int64_t k = 0; k < a.k; ++k) s[k & 3] += x[k] * y[k];
      out[static_cast<size_t>(i)] = (s[0] + s[1]) + (s[2] + s[3]);
    }
  });
  return out;
}

// The same sums of the codes of int8 operands.
inline std::vector<int> integer_reference(const TestOperand& a, const TestOperand& b, const std::vector<int64_t>& rows) {
  std::vector<int> out(rows.size() * static_cast<size_t>(b.rows));
  parallel_for(static_cast<int64_t>(out.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int* x = &a.integers[static_cast<size_t>(rows[static_cast<size_t>(i / b.rows)] * a.k)];
      const int* y = &b.integers[static_cast<size_t>(i % b.rows * a.k)];
      int sum = 0;
      for (int64_t k = 0; k < a.k; ++k) sum += x[k] * y[k];
      out[static_cast<size_t>(i)] = sum;
    }
  });
  return out;
}

// 20 log10(|ref| / |ref - y|); equal: infinity; any NaN: NaN, which fails every bar (numerics.md section 13).
inline double sqnr(const std::vector<double>& ref, const std::vector<double>& y) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < ref.size(); ++i) signal += ref[i] * ref[i], noise += (ref[i] - y[i]) * (ref[i] - y[i]);
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

}  // namespace halftone::gemm
