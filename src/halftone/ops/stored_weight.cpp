#include "halftone/ops/stored_weight.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/gemm/cpu/decode.h"
#include "halftone/ops/common.h"

namespace halftone {
namespace {

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

uint32_t amax_bits(const float* x, int64_t n) {
  uint32_t a = 0;
  for (int64_t i = 0; i < n; ++i) a = std::max(a, magnitude(x[i]));
  return a;
}

// The draws of consecutive elements: one Philox call serves four.
class Draws {
 public:
  Draws(const Rounding& r, int64_t first) : r_(r), i_(first) {}
  uint32_t next() {
    if (group_ != i_ >> 2) group_ = i_ >> 2, words_ = philox(r_.key, static_cast<uint64_t>(group_), r_.step, r_.micro);
    return words_[static_cast<size_t>(i_++ & 3)];
  }

 private:
  const Rounding& r_;
  int64_t i_, group_ = -1;
  decltype(philox(PhiloxKey{}, 0, 0, 0)) words_{};
};

void store_int8(const float* w, int64_t n, int64_t k, const Rounding& round, int8_t* codes, float* scales) {
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = w + r * k;
      const ScalePair s = int8_scale(amax_bits(row, k));
      scales[r] = s.scale;
      Draws draws(round, round.index(r, 0, k));
      for (int64_t j = 0; j < k; ++j) {
        const float y = row[j] * s.inv;
        codes[r * k + j] = static_cast<int8_t>(round.stochastic ? encode_sr32(Int::int8, y, draws.next()) : encode(Int::int8, y));
      }
    }
  });
}

void store_uint4(const float* w, int64_t n, int64_t k, int group, const Rounding& round, uint8_t* packed, float* scales, float* zeros) {
  const int64_t groups = k / group;
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      Draws draws(round, round.index(r, 0, k));
      for (int64_t g = 0; g < groups; ++g) {
        const float* x = w + r * k + g * group;
        const auto [low, high] = std::minmax_element(x, x + group, [](float a, float b) { return order_key(a) < order_key(b); });
        const AffineScale s = uint4_scale(amax_bits(x, group), *low, *high, true);
        scales[r * groups + g] = s.scale, zeros[r * groups + g] = s.zero;
        uint8_t* out = packed + (r * k + g * group) / 2;
        for (int j = 0; j < group; j += 2) {
          uint8_t code[2];
          for (int i = 0; i < 2; ++i) {
            const float y = (x[j + i] - s.zero) * s.inv;
            code[i] = static_cast<uint8_t>(round.stochastic ? encode_sr32(Int::uint4, y, draws.next()) : encode(Int::uint4, y));
          }
          out[j / 2] = pack4(code[0], code[1]);
        }
      }
    }
  });
}

}  // namespace

StoredWeight allocate_stored(const OperandSpec& spec, int64_t n, int64_t k, c10::Device device) {
  const auto make = [&](at::IntArrayRef shape, at::ScalarType type) { return at::empty(shape, at::TensorOptions().device(device).dtype(type)); };
  StoredWeight s;
  s.spec = spec;
  if (spec.element == Element::int8) {
    s.codes = make({n, k}, at::kChar), s.scales = make({n}, at::kFloat);
  } else {
    check(spec.element == Element::uint4 && k % spec.block == 0, "stored weight: {} columns do not divide into groups of {}", k, spec.block);
    s.codes = make({n, k / 2}, at::kByte);
    s.scales = make({n, k / spec.block}, at::kFloat), s.zeros = make({n, k / spec.block}, at::kFloat);
  }
  return s;
}

void store(const at::Tensor& w, const Rounding& rounding, StoredWeight& s) {
  check(w.is_cpu() && w.scalar_type() == at::kFloat && w.is_contiguous(), "stored weight: expected contiguous float32 on the CPU");
  if (s.spec.element == Element::int8) {
    store_int8(w.const_data_ptr<float>(), w.size(0), w.size(1), rounding, s.codes.mutable_data_ptr<int8_t>(), s.scales.mutable_data_ptr<float>());
  } else {
    store_uint4(w.const_data_ptr<float>(), w.size(0), w.size(1), s.spec.block, rounding, s.codes.mutable_data_ptr<uint8_t>(),
                s.scales.mutable_data_ptr<float>(), s.zeros.mutable_data_ptr<float>());
  }
}

Operand stored_operand(const StoredWeight& s) {
  Operand o;
  o.spec = s.spec, o.scales = s.scales, o.zeros = s.zeros;
  o.rows = s.codes.size(0);
  if (s.spec.element == Element::int8) {
    o.k = s.codes.size(1), o.codes = s.codes;
  } else {
    o.k = s.codes.size(1) * 2, o.packed = s.codes;
  }
  return o;
}

at::Tensor dequantize(const StoredWeight& stored) { return dequantize(stored_operand(stored)); }

Operand stored_transposed(const StoredWeight& stored, at::ScalarType hp) {
  const Operand o = stored_operand(stored);
  const at::Tensor values = at::empty({o.rows, o.k}, stored.codes.options().dtype(hp));
  gemm::decode(view(o), o.rows, o.k, gemm::Decode::values, kernel_dtype(values), values.data_ptr());
  return plain_operand(values, true);
}

}  // namespace halftone
