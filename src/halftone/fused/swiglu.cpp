#include "halftone/fused/swiglu.h"

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {

void swiglu_forward(const SwigluForward& p) {
  check_shape("swiglu", p.rows, p.cols);
  check_float("swiglu", p.dtype);
  if (p.amax) *p.amax = 0;
  if (p.rows == 0 || p.cols == 0) return;
  check(p.g && p.u && p.h, "swiglu: expected g, u and h");
  parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) { fused_kernels().swiglu_forward(p, begin, end); });
}

void swiglu_backward(const SwigluBackward& p) {
  check_shape("swiglu backward", p.rows, p.cols);
  check_float("swiglu backward", p.dtype);
  if (p.amax) p.amax[0] = p.amax[1] = 0;
  if (p.rows == 0 || p.cols == 0) return;
  check(p.g && p.u && p.dh && p.dg && p.du, "swiglu backward: expected g, u, dh, dg and du");
  parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) { fused_kernels().swiglu_backward(p, begin, end); });
}

}  // namespace halftone
