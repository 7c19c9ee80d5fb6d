#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/base/philox.h"

namespace halftone {

// Fills a contiguous float32 or bfloat16 tensor with normal numbers of the stream `key` by element index; cut > 0: none
// beyond +-cut. Drawn on the host (fused/random_fill.h), so that every device starts from the same bits.
void fill_normal(at::Tensor& out, PhiloxKey key, double std, double cut);

}  // namespace halftone
