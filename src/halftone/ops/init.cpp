#include "halftone/ops/init.h"

#include <ATen/ops/empty.h>

#include "halftone/fused/random_fill.h"
#include "halftone/ops/common.h"

namespace halftone {

void fill_normal(at::Tensor& out, PhiloxKey key, double std, double cut) {
  check(out.is_contiguous(), "fill_normal: expected a contiguous tensor");
  at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), out.options().device(at::kCPU));
  RandomFill p;
  p.key = key, p.count = out.numel(), p.dtype = kernel_dtype(out), p.out = host.data_ptr();
  cut > 0 ? fill_truncated_normal(p, 0, std, -cut, cut) : fill_normal(p, 0, std);
  if (!out.is_cpu()) out.copy_(host);
}

}  // namespace halftone
