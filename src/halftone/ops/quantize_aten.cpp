#include "halftone/ops/quantize_aten.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/ops/weight.h"

namespace halftone::aten {
namespace {

constexpr int64_t kMask32 = 0xFFFFFFFF;

// Philox4x32-10 on tensors of 32-bit words held in int64; wrap-around of int64 products is the low 64 bits needed.
std::array<at::Tensor, 4> philox_words(const at::Tensor& group, uint32_t step, PhiloxKey key) {
  const auto mul_hi = [](const at::Tensor& c, int64_t m) { return at::bitwise_right_shift(c * m, 32).bitwise_and(kMask32); };
  const auto mul_lo = [](const at::Tensor& c, int64_t m) { return (c * m).bitwise_and(kMask32); };
  std::array<at::Tensor, 4> c = {group.bitwise_and(kMask32), at::bitwise_right_shift(group, 32), at::full_like(group, int64_t{step}),
                                 at::zeros_like(group)};
  for (int round = 0; round < 10; ++round) {
    c = {mul_hi(c[2], 0xCD9E8D57).bitwise_xor(c[1]).bitwise_xor(int64_t{key.lo}), mul_lo(c[2], 0xCD9E8D57),
         mul_hi(c[0], 0xD2511F53).bitwise_xor(c[3]).bitwise_xor(int64_t{key.hi}), mul_lo(c[0], 0xD2511F53)};
    key.lo += 0x9E3779B9u;
    key.hi += 0xBB67AE85u;
  }
  return c;
}

// 16 random bits of each element index: word (i & 7) >> 1, low half for even i.
at::Tensor random_bits16(const at::Tensor& index, const std::string& key) {
  const StepContext& context = step_context();
  const auto words = philox_words(at::bitwise_right_shift(index, 3), context.step, philox_key(context.seed, key));
  const at::Tensor which = at::bitwise_right_shift(index.bitwise_and(7), 1);
  const at::Tensor word = at::where(which == 0, words[0], at::where(which == 1, words[1], at::where(which == 2, words[2], words[3])));
  return at::bitwise_right_shift(word, index.bitwise_and(1) * 16).bitwise_and(0xFFFF);
}

at::Tensor element_index(const at::Tensor& x, bool transposed, int64_t first) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  const at::Tensor r = at::arange(rows, options).unsqueeze(1), c = at::arange(cols, options).unsqueeze(0);
  return transposed ? (c + first) * rows + r : (r + first) * cols + c;
}

}  // namespace

Quantized quantize_rows(const at::Tensor& x, const OperandSpec& spec, const std::string& key, bool transposed, Operand operand) {
  const at::Tensor xf = x.to(at::kFloat);
  const at::Tensor amax = xf.abs().amax(1, true);
  const at::Tensor finite = amax.isfinite();
  if (spec.element == Element::int8) {
    at::Tensor scale = at::clamp_min(amax / 127.0f, 1e-12f);
    at::Tensor y = xf * scale.reciprocal();
    at::Tensor q;
    if (spec.stochastic) {
      const int64_t first = operand == Operand::activation ? step_context().first_row : 0;
      const at::Tensor floor = y.floor(), fraction = (y - floor).to(at::kDouble);
      const at::Tensor up = (random_bits16(element_index(x, transposed, first), key).to(at::kDouble) + 0.5) < fraction * 65536.0;
      q = floor + up.to(at::kFloat);
    } else {
      q = y.round();
    }
    q = at::where(finite, q.clamp(-127, 127), at::zeros({}, q.options())).to(at::kChar);
    scale = at::where(finite, scale, at::full({}, std::numeric_limits<float>::quiet_NaN(), scale.options()));
    return {q, scale};
  }
  check(spec.element == Element::e4m3 && spec.granularity == Granularity::row, "row quantisation: expected int8 or e4m3 elements");
  at::Tensor inv = at::where(amax < 1e-12f, at::full({}, 448.0f / 1e-12f, amax.options()), 448.0f / amax);
  if (spec.scale == ScaleFormat::fp32_pow2) {
    inv = inv.contiguous().view(at::kInt).bitwise_and(static_cast<int64_t>(0x7F800000)).view(at::kFloat);
  }
  const at::Tensor q = (xf * inv).clamp(-448.0f, 448.0f).to(at::kFloat8_e4m3fn);
  const at::Tensor nan = at::full({}, std::numeric_limits<float>::quiet_NaN(), inv.options());
  return {q, at::where(finite, inv.reciprocal(), nan)};
}

}  // namespace halftone::aten
