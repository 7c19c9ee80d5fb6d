#pragma once
#include <random>
#include <vector>

#include "halftone/quantize/dequantize_ref.h"
#include "quantize/operand_cases.h"

// The data of numerics.md section 13, and quantisation round trips.
namespace halftone::testing {

// R: N(0, 1); O: with Bernoulli(0.005) outliers of another 100 N(0, 1); bf16 at each step.
inline std::vector<float> data_r(int64_t n, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = to_float(bf16(normal(rng)));
  return x;
}
inline std::vector<float> data_o(int64_t n, unsigned seed) {
  std::vector<float> x = data_r(n, seed);
  std::mt19937_64 rng(seed + 77);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution mask(0.005);
  for (float& v : x) {
    const float more = to_float(bf16(100 * to_float(bf16(normal(rng)))));
    if (mask(rng)) v = to_float(bf16(v + more));
  }
  return x;
}

// 20 log10(|ref| / |ref - y|) with norms in fp64.
class Sqnr {
 public:
  void add(double reference, double y) { signal_ += reference * reference, noise_ += (reference - y) * (reference - y); }
  double db() const { return 10 * std::log10(signal_ / noise_); }

 private:
  double signal_ = 0, noise_ = 0;
};

// x[rows, cols] quantised row-wise and dequantised.
struct Qdq {
  Qdq(const std::vector<float>& x, int64_t rows, int64_t cols, const OperandSpec& spec, const Rounding& rounding = {},
      bool transposed = false, uint32_t signs = 0)
      : source(elements(x, DType::bf16)) {
    QuantizeOperand p;
    p.x = source.data(), p.rows = rows, p.cols = cols, p.ld = cols;
    p.want_row = !transposed, p.want_transposed = transposed;
    QuantizedCopy& c = transposed ? p.transposed : p.row;
    c.spec = spec, c.rounding = rounding, c.signs = signs;
    R = transposed ? cols : rows;
    CopyBuffers buffers(c, R, transposed ? rows : cols);
    C = buffers.C;
    quantize_operand(p);
    values.resize(static_cast<size_t>(R * C));
    for (int64_t i = 0; i < R * C; ++i) values[static_cast<size_t>(i)] = ref::dequantized(c, R, C, i / C, i % C);
    const auto* q = buffers.codes.as<uint8_t>();
    codes.assign(q, q + R * C);
    const auto* s = buffers.scales.as<uint8_t>();
    scales.assign(s, s + buffers.scales.size());
    if (buffers.packed.size() > 0) {  // the packed form represents the same codes
      for (int64_t i = 0; i < R * C; ++i) packed_differs += ref::unpacked_code(spec.element, buffers.packed.as<uint8_t>(), i) != q[i];
    }
  }
  double sqnr(const std::vector<float>& x) const {
    Sqnr s;
    for (size_t i = 0; i < values.size(); ++i) s.add(x[i], values[i]);
    return s.db();
  }

  std::vector<std::byte> source;
  int64_t R = 0, C = 0, packed_differs = 0;
  std::vector<double> values;
  std::vector<uint8_t> codes, scales;
};

inline Rounding draws(unsigned seed) {
  Rounding r;
  r.key = philox_key(seed, "layers.0.w1.weight#dy.wgrad"), r.step = 11;
  return r;
}

}  // namespace halftone::testing
