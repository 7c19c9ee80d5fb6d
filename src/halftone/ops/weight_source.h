#pragma once
#include <span>

#include "halftone/ops/operand.h"
#include "halftone/ops/weight.h"

namespace halftone {

// Source of a layer's weights for GEMMs; by default the parameters in memory. A different store (one that all-gathers shards, or
// whose optimizer step writes codes) overrides this. Both functions are called once per version of the weights, and `copies` once per use
// if copies are not cached (StepContext::last_pass).
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The requested copies of w[N, K]; null: not made. For a stored weight: its codes, and transposed its values in `hp` (stored_weight.h).
  // found: as in quantize(), for this version of w.
  virtual OperandCopies copies(const Weight& w, const CopyRequest* row, const CopyRequest* transposed, at::ScalarType hp,
                               at::Tensor* found) const;
  // The values of siblings as one matrix [sum N, K]; undefined if they are not contiguous.
  virtual at::Tensor whole(std::span<Weight* const> siblings) const;
};
const WeightSource& parameters();

// One tensor per sibling, viewed as one matrix if they are adjacent in one buffer; otherwise undefined.
at::Tensor joined(std::span<Weight* const> siblings, at::Tensor Weight::*member);

}  // namespace halftone
