#include "halftone/fused/dge_slopes.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"

namespace halftone {
namespace {

template <class T> void slopes(const DgeSlopes& p) {
  const OperandSpec& s = p.copy.spec;
  parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = static_cast<const T*>(p.w) + r * p.cols;
      for (int64_t first = 0; first < p.cols; first += s.block) {
        const DgeArgument a = dge_argument(p.copy, p.cols, r, first);
        const int64_t last = std::min<int64_t>(p.cols, first + s.block);
        for (int64_t j = first; j < last; ++j) p.out[r * p.cols + j] = dge_slope(s, to_float(row[j]), a);
      }
    }
  });
}

}  // namespace

void dge_slopes(const DgeSlopes& p) {
  check(p.copy.spec.element == Element::e2m1 && p.copy.spec.block > 0, "the gradient estimator is that of block-scaled e2m1 weights");
  check_float("gradient estimator", p.type);
  p.type == DType::bf16 ? slopes<bf16>(p) : slopes<float>(p);
}

}  // namespace halftone
