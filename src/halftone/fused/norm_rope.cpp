#include "halftone/fused/norm_rope.h"

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"
#include "halftone/fused/row_sums.h"

namespace halftone {
namespace {

bool nothing(const NormRope& p) { return p.rope.tokens == 0 || p.rope.heads == 0; }

void check_norm(const NormRope& p) {
  check_rope(p.rope);
  check(nothing(p) || (p.weight && p.rope.head_dim <= kMostNormRopeDim),
        "norm_rope: expected a weight and a head dimension of at most {}, found {}", kMostNormRopeDim, p.rope.head_dim);
}

}  // namespace

void norm_rope(const NormRope& p) {
  check_norm(p);
  if (nothing(p)) return;
  parallel_for(p.rope.tokens, row_grain(p.rope.heads * p.rope.head_dim),
               [&](int64_t begin, int64_t end) { fused_kernels().norm_rope(p, begin, end); });
}

void norm_rope_backward(const NormRopeBackward& p) {
  const Rope& r = p.norm.rope;
  check_norm(p.norm);
  if (nothing(p.norm)) return;
  check(p.x, "norm_rope backward: expected x");
  add_over_rows(r.tokens, r.heads * r.head_dim, r.head_dim, p.dw,
                [&](int64_t begin, int64_t end, float* dw) { fused_kernels().norm_rope_backward(p, begin, end, dw); });
}

}  // namespace halftone
