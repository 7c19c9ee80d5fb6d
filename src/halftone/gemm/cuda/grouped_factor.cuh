#pragma once
#include "halftone/device/row_groups.cuh"
#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

using device::group_of;

// Factor applied after the sum of a row; `at` indexes row scales.
__device__ inline float row_factor(const GroupedOperand& x, float factor, int64_t group, int64_t at) {
  if (x.outer) factor *= x.outer[group];
  if (x.scales == Scales::tensor) factor *= x.scale[group];
  if (x.scales == Scales::row) factor *= x.scale[at];
  return factor;
}

}  // namespace halftone::gemm
