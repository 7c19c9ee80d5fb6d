#pragma once
#include <span>

#include "halftone/ops/operand.h"
#include "halftone/ops/weight.h"

namespace halftone {

// Where products get the weights of a layer: from the parameters as they lie in memory. Another store (one that gathers shards, one
// whose optimizer step writes codes) overrides what it does otherwise. Both are called once per version of the weights, and `copies` once
// for every use where copies do not stay (StepContext::last_pass).
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The copies asked for of w[N, K], null: none. A stored weight's are its codes, and transposed its numbers in `hp` (stored_weight.h).
  // found: as of quantize(), of this version of w.
  virtual OperandCopies copies(const Weight& w, const CopyRequest* row, const CopyRequest* transposed, at::ScalarType hp,
                               at::Tensor* found) const;
  // The numbers of siblings as one matrix [sum N, K]; undefined where they are not one.
  virtual at::Tensor whole(std::span<Weight* const> siblings) const;
};
const WeightSource& parameters();

// A tensor of every sibling as one matrix, where they lie behind one another in one buffer; else undefined.
at::Tensor joined(std::span<Weight* const> siblings, at::Tensor Weight::*member);

}  // namespace halftone
