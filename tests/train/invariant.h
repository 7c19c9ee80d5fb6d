#pragma once
#include <ATen/core/Tensor.h>

#include <cstring>

#include "halftone/ops/batch_invariant.h"

namespace halftone {

// debug.batch_invariant for as long as it exists.
struct BatchInvariantScope {
  BatchInvariantScope() { set_batch_invariant(true); }
  ~BatchInvariantScope() { set_batch_invariant(false); }
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace halftone
