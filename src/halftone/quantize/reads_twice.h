#pragma once
#include "halftone/quantize/operand.h"

namespace halftone {

// Whether a quantiser must read a matrix to its end before it can write the first code of this copy: where the scale of a tensor, of a
// column or of a two-level scheme follows from all of it, or the largest block that e4m3 folds against. A row can be held meanwhile, 32 of
// them (tiles) or columns cannot.
constexpr bool reads_twice(const OperandSpec& s, ValueForm form, bool transposed) {
  return s.granularity == Granularity::tensor || s.two_level == TwoLevel::tensor || form == ValueForm::fold_e5m2 ||
         (form == ValueForm::fold_e4m3 && s.granularity == Granularity::tile) ||
         (transposed && (s.granularity == Granularity::row || form == ValueForm::fold_e4m3));
}

}  // namespace halftone
