#include "halftone/ops/weight_source.h"

#include "halftone/ops/stored_weight.h"

namespace halftone {

OperandCopies WeightSource::copies(const Weight& w, const CopyRequest* row, const CopyRequest* transposed, at::ScalarType hp,
                                   at::Tensor* found) const {
  if (w.master.defined()) return quantize(w.master, row, transposed, {}, true, found);
  if (!w.stored) return quantize(w.value.detach(), row, transposed, {}, false, found);
  return {row ? stored_operand(*w.stored) : Operand(), transposed ? stored_transposed(*w.stored, hp) : Operand()};
}

at::Tensor WeightSource::whole(std::span<Weight* const> siblings) const { return joined(siblings, &Weight::value); }

const WeightSource& parameters() {
  static const WeightSource source;
  return source;
}

at::Tensor joined(std::span<Weight* const> siblings, at::Tensor Weight::*member) {
  const at::Tensor first = siblings.front()->*member;
  if (siblings.size() == 1) return first.defined() ? first.detach() : first;
  int64_t rows = 0;
  for (const Weight* w : siblings) {
    const at::Tensor& t = w->*member;
    if (!t.defined() || !t.is_contiguous() || !t.is_alias_of(first)) return {};
    if (t.storage_offset() != first.storage_offset() + rows * first.size(1)) return {};
    rows += t.size(0);
  }
  return first.detach().as_strided({rows, first.size(1)}, {first.size(1), 1});
}

}  // namespace halftone
