#include "halftone/fused/rms_norm.h"

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"
#include "halftone/fused/row_sums.h"

namespace halftone {

namespace {

void check_types(const char* what, DType stream, DType type) {
  check_float(what, type);
  check(stream == DType::f32 || (stream == DType::bf16 && type == DType::bf16),
        "{}: expected a residual stream of f32, or of bf16 with bf16 branches", what);
}

}  // namespace

void rms_norm_forward(const RmsNormForward& p) {
  check_shape("rms_norm", p.rows, p.cols);
  check_types("rms_norm", p.stream_dtype, p.dtype);
  check_float("rms_norm weight", p.weight_dtype);
  if (p.amax) *p.amax = 0;
  if (p.rows == 0 || p.cols == 0) return;
  check(p.x && p.weight && p.y && (!p.branch || p.sum), "rms_norm: expected x, weight, y, and sum with a branch");
  parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) { fused_kernels().rms_norm_forward(p, begin, end); });
}

void rms_norm_backward(const RmsNormBackward& p) {
  check_shape("rms_norm backward", p.rows, p.cols);
  check_types("rms_norm backward", p.stream_dtype, p.dtype);
  check_float("rms_norm weight", p.weight_dtype);
  if (p.rows == 0 || p.cols == 0) return;
  check(p.x && p.weight && p.rstd && p.dy && p.dx, "rms_norm backward: expected x, weight, rstd, dy, dx");
  add_over_rows(p.rows, p.cols, p.cols, p.dw,
                [&](int64_t begin, int64_t end, float* dw) { fused_kernels().rms_norm_backward(p, begin, end, dw); });
}

}  // namespace halftone
