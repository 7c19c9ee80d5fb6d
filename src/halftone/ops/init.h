#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/base/philox.h"

namespace halftone {

// Fills a contiguous float32 or bfloat16 tensor with normal numbers of the stream `key` by element index; cut > 0: none beyond +-cut. The
// bits are the same on every device (fused/random_fill.h). `first_index`: index of its first element in the full tensor.
void fill_normal(at::Tensor& out, PhiloxKey key, double std, double cut, int64_t first_index = 0);

}  // namespace halftone
