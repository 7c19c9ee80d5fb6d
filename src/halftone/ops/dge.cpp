#include "halftone/ops/dge.h"

#include <ATen/ops/empty.h>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/formats/dge.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/ops/common.h"
#include "halftone/quantize/panels.h"

namespace halftone {
namespace {

template <class T> void slopes(const T* w, const QuantizedCopy& c, int64_t rows, int64_t cols, float* out) {
  const OperandSpec& s = c.spec;
  const auto* bytes = static_cast<const uint8_t*>(c.scales);
  const bool tile = s.granularity == Granularity::tile, macro = s.two_level == TwoLevel::macro;
  const float outer = c.outer != nullptr ? *c.outer : 1.0f;
  const int64_t across = ceil_div(cols, s.block), macros = ceil_div(cols, 128);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t b = 0; b < across; ++b) {
        const uint8_t byte = bytes[(tile ? r / s.block : r) * across + b];
        const int64_t first = b * s.block, last = std::min<int64_t>(cols, first + s.block);
        const bool mx = s.scale == ScaleFormat::e8m0;
        const float factor = mx ? mx_inverse(byte) : fp4_factor(s.chain, s.scale, byte, {outer, 1.0f / outer});
        const float spread = macro ? inv_macro(c.macro[(tile ? r / 128 : r) * macros + first / 128]) : 1.0f;
        for (int64_t j = first; j < last; ++j) {
          const float x = to_float(w[r * cols + j]);
          out[r * cols + j] = dge_factor(mx ? x * spread * factor : fp4_scaled(s.chain, x, factor));
        }
      }
    }
  });
}

}  // namespace

at::Tensor dge_slopes(const at::Tensor& w_nk, const Operand& forward) {
  check(forward.spec.element == Element::e2m1, "the gradient estimator is that of e2m1 weights");
  check(w_nk.is_cpu(), "the gradient estimator runs on the CPU in this build");
  const at::Tensor w = w_nk.contiguous();
  at::Tensor out = at::empty(w.sizes(), w.options().dtype(at::kFloat));
  const QuantizedCopy c = view(forward);
  if (kernel_dtype(w) == DType::bf16) {
    slopes(static_cast<const bf16*>(w.const_data_ptr()), c, w.size(0), w.size(1), out.mutable_data_ptr<float>());
  } else {
    slopes(w.const_data_ptr<float>(), c, w.size(0), w.size(1), out.mutable_data_ptr<float>());
  }
  return out;
}

}  // namespace halftone
