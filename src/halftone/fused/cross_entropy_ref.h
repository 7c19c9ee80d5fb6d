#pragma once
#include <algorithm>
#include <cmath>

#include "halftone/fused/cross_entropy.h"
#include "halftone/fused/ref.h"

namespace halftone {

struct CrossEntropyRef {
  std::vector<double> loss, lse, dlogits;  // [R], [R], [R, V]
};
inline CrossEntropyRef cross_entropy_ref(const CrossEntropy& p) {
  CrossEntropyRef out;
  for (int64_t r = 0; r < p.rows; ++r) {
    const auto z = [&](int64_t v) { return element_at(p.logits, p.dtype, r * p.logits_stride + v); };
    const int64_t label = integer_at(p.labels, p.label_dtype, r);
    const bool ignored = label == kIgnoredLabel;
    double top = z(0), sum = 0;
    for (int64_t v = 0; v < p.vocab; ++v) top = std::max(top, z(v));
    for (int64_t v = 0; v < p.vocab; ++v) sum += std::exp(z(v) - top);
    const double lse = top + std::log(sum);
    out.lse.push_back(ignored ? 0 : lse);
    out.loss.push_back(ignored ? 0 : lse - z(label));
    for (int64_t v = 0; v < p.vocab; ++v)
      out.dlogits.push_back(ignored ? 0 : ((1 + 2 * p.z_loss * lse) * std::exp(z(v) - lse) - (v == label)) * p.grad_scale);
  }
  return out;
}

}  // namespace halftone
