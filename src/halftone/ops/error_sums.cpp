#include "halftone/ops/error_sums.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/parallel.h"
#include "halftone/formats/float_spec.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_spec.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone {
namespace {

// Accumulates f(first, n, sums) over ranges of x's rows: on the CPU each range has its own sums and fits a core's cache, so the result
// does not depend on the number of threads; on a GPU the fp64 copies of one range take 128 MiB each.
template <class F>
at::Tensor over_stretches(const at::Tensor& x, F&& f) {
  const bool cpu = x.is_cpu();
  const int64_t rows = x.size(0), cols = std::max<int64_t>(x.size(1), 1);
  const int64_t step = std::max<int64_t>((int64_t{1} << (cpu ? 17 : 24)) / cols, 1), stretches = (rows + step - 1) / step;
  const at::Tensor sums = at::zeros({cpu ? std::max<int64_t>(stretches, 1) : 1, ErrorSums::kCount}, x.options().dtype(at::kDouble));
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i * step, std::min(step, rows - i * step), sums.select(0, cpu ? i : 0));
  };
  cpu ? parallel_for(stretches, 1, run) : run(0, stretches);
  return at::cat({sums.narrow(1, 0, ErrorSums::kAmax).sum(0), sums.select(1, ErrorSums::kAmax).amax().view({1})});
}

at::Tensor count(const at::Tensor& mask) { return mask.sum(at::kDouble); }
at::Tensor squares(const at::Tensor& x) {
  const at::Tensor flat = x.reshape({-1});
  return flat.dot(flat);
}

void add_sum(const at::Tensor& sums, ErrorSums::Index i, const at::Tensor& value) { sums.select(0, i).add_(value); }

// `size`: |x|, elementwise.
void add_range(const at::Tensor& sums, const at::Tensor& size) {
  if (size.numel() == 0) return;
  add_sum(sums, ErrorSums::kNonFinite, count(size.lt(INFINITY).logical_not()));
  const at::Tensor amax = sums.select(0, ErrorSums::kAmax);
  amax.copy_(at::maximum(amax, size.amax().to(at::kDouble)));  // both propagate NaN
}

void add_noise(const at::Tensor& sums, const at::Tensor& original, const at::Tensor& found) {
  add_sum(sums, ErrorSums::kSignal, squares(original));
  add_sum(sums, ErrorSums::kNoise, squares(original - found));
}

// The n-token rotation without its signs, fp64 [n, n]: H_ij = n^(-1/2) (-1)^popcount(i & j), built on the device.
at::Tensor sylvester(int n, const at::TensorOptions& options) {
  const at::Tensor i = at::arange(n, options.dtype(at::kLong));
  at::Tensor bits = i.unsqueeze(1).bitwise_and(i.unsqueeze(0));
  for (int shift = 16; shift > 0; shift /= 2) bits = bits.bitwise_xor(at::bitwise_right_shift(bits, shift));
  return (1 - 2 * bits.bitwise_and(1)).to(at::kDouble) * static_cast<double>(hadamard_norm(n));
}

// x[R, C] fp64 rotated along C in groups of n, zero-padded to `cols`.
at::Tensor rotated(at::Tensor x, int n, const RotationSigns& signs, int64_t cols) {
  if (x.size(1) < cols) x = at::constant_pad_nd(x, {0, cols - x.size(1)});
  std::vector<double> sigma(static_cast<size_t>(n));
  for (int j = 0; j < n; ++j) sigma[static_cast<size_t>(j)] = signs.negative(j) != 0 ? -1 : 1;
  const at::Tensor h = sylvester(n, x.options()) * at::tensor(sigma, x.options());
  return x.reshape({-1, n}).mm(h.t()).reshape({x.size(0), cols});
}

// The two largest codes of an element type, and the multiple of each code's value beyond which rounding to it counts as saturation: more
// than half the step to the next smaller value.
struct Top {
  int mask, positive, negative;
  double past_positive, past_negative;
};
Top top(const OperandSpec& s) {
  const Element e = s.element;
  if (is_float(e)) {
    const FloatSpec f = spec(float_of(e));
    const double past = 1 + FloatSpec::pow2(f.max_exponent() - f.mantissa_bits - 1) / f.max_finite();
    return {2 * f.sign_mask() - 1, f.max_code(), f.max_code() | f.sign_mask(), past, past};
  }
  const IntSpec i = int_range(s);
  const int mask = e == Element::int4 ? 0xF : 0xFF;
  return {mask, i.highest & mask, i.lowest & mask, 1 + 0.5 / i.highest, 1 - 0.5 / i.lowest};
}

at::Tensor saturated(const at::Tensor& codes, const Top& t, const at::Tensor& size, const at::Tensor& numbers) {
  const at::Tensor code = t.mask == 0xFF ? codes : codes.bitwise_and(t.mask), found = numbers.abs();
  const at::Tensor positive = code.eq(t.positive), negative = code.eq(t.negative), past = size.gt(found * t.past_positive);
  const at::Tensor beyond = t.past_positive == t.past_negative
                                ? positive.logical_or_(negative).logical_and_(past)
                                : positive.logical_and_(past).logical_or_(negative.logical_and_(size.gt(found * t.past_negative)));
  return beyond.logical_and_(size.lt(INFINITY));
}

}  // namespace

void ErrorSums::add(const ErrorSums& o) {
  if (!values.defined()) {
    *this = o;
    values = o.values.clone();
    return;
  }
  values.narrow(0, 0, kAmax).add_(o.values.narrow(0, 0, kAmax));
  const at::Tensor amax = values.select(0, kAmax);
  amax.copy_(at::maximum(amax, o.values.select(0, kAmax)));
  elements += o.elements, has_noise |= o.has_noise, has_shares |= o.has_shares;
}

ErrorSums plain_sums(const at::Tensor& x) {
  ErrorSums s;
  s.elements = x.numel();
  s.values = over_stretches(x, [&](int64_t r, int64_t n, const at::Tensor& sums) { add_range(sums, x.narrow(0, r, n).abs()); });
  return s;
}

ErrorSums coded_sums(const at::Tensor& x, const CodedMatrix& q) {
  const int64_t cols = q.spec.hadamard > 0 ? q.numbers.size(1) : x.size(1);
  const Top t = top(q.spec);
  ErrorSums s;
  s.elements = x.size(0) * cols, s.has_noise = s.has_shares = true;
  s.values = over_stretches(q.numbers, [&](int64_t r, int64_t n, const at::Tensor& sums) {
    at::Tensor u = x.narrow(0, r, n).to(at::kDouble).contiguous();
    if (q.spec.hadamard > 0) u = rotated(u, q.spec.hadamard, q.signs, cols);
    const at::Tensor d = q.numbers.narrow(0, r, n).narrow(1, 0, cols).to(at::kDouble);
    const at::Tensor size = u.abs();
    add_range(sums, size);
    add_noise(sums, u, d);
    add_sum(sums, ErrorSums::kFlushed, count(d.eq(0).logical_and(u.ne(0))));
    add_sum(sums, ErrorSums::kSaturated, count(saturated(q.codes.narrow(0, r, n).narrow(1, 0, cols), t, size, d)));
  });
  return s;
}

ErrorSums product_sums(const at::Tensor& found, const std::function<at::Tensor(int64_t, int64_t)>& reference, const at::Tensor& padding) {
  ErrorSums s;
  s.elements = found.numel(), s.has_noise = true;
  s.values = over_stretches(found, [&](int64_t r, int64_t n, const at::Tensor& sums) {
    const auto counted = [&](const at::Tensor& t) {
      const at::Tensor wide = t.to(at::kDouble);
      return padding.defined() ? wide.masked_fill(padding.narrow(0, r, n).unsqueeze(1), 0) : wide;
    };
    const at::Tensor d = counted(found.narrow(0, r, n));
    add_range(sums, d.abs());
    add_noise(sums, counted(reference(r, n)), d);
  });
  return s;
}

}  // namespace halftone
