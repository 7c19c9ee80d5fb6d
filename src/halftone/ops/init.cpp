#include "halftone/ops/init.h"

#include "halftone/fused/random_fill.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"

namespace halftone {

void fill_normal(at::Tensor& out, PhiloxKey key, double std, double cut, int64_t first_index) {
  check(out.is_contiguous(), "fill_normal: expected a contiguous tensor");
  RandomFill p;
  p.key = key, p.first_index = static_cast<uint64_t>(first_index), p.count = out.numel(), p.dtype = kernel_dtype(out),
  p.out = out.data_ptr();
  p.values = cut > 0 ? truncated_normal_values(0, std, -cut, cut) : normal_values(0, std);
  out.is_cpu() ? random_fill(p) : cuda::launch("random fill", &cuda::Module::random_fill, p, out.device());
}

}  // namespace halftone
