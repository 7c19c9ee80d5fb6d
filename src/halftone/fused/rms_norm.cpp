#include "halftone/fused/rms_norm.h"

#include <algorithm>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

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
  // At most 64 partial sums of dw, each of at least 32 rows.
  const int64_t block = std::max<int64_t>(32, (p.rows + 63) / 64), blocks = (p.rows + block - 1) / block;
  std::vector<float> partial(static_cast<size_t>(blocks * p.cols));
  parallel_for(blocks, (row_grain(p.cols) + block - 1) / block, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      fused_kernels().rms_norm_backward(p, b * block, std::min(p.rows, (b + 1) * block), partial.data() + b * p.cols);
    }
  });
  if (!p.dw) return;
  for (int64_t b = 0; b < blocks; ++b) fused_kernels().accumulate(p.dw, partial.data() + b * p.cols, DType::f32, p.cols);
}

}  // namespace halftone
