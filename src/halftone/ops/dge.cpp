#include "halftone/ops/dge.h"

#include <ATen/ops/empty.h>

#include "halftone/fused/dge_slopes.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"

namespace halftone {

at::Tensor dge_slopes(const at::Tensor& w_nk, const Operand& forward) {
  check(forward.scales.defined(), "gradient estimator: the weight was quantised without its block scales (CopyRequest::block_scales)");
  const at::Tensor w = w_nk.contiguous();
  at::Tensor out = at::empty(w.sizes(), w.options().dtype(at::kFloat));
  DgeSlopes p;
  p.w = w.const_data_ptr(), p.type = kernel_dtype(w), p.rows = w.size(0), p.cols = w.size(1);
  p.copy = view(forward), p.out = out.mutable_data_ptr<float>();
  if (w.is_cpu()) {
    dge_slopes(p);
  } else {
    cuda::launch("gradient estimator", &cuda::Module::dge_slopes, p, w.device());
  }
  return out;
}

}  // namespace halftone
