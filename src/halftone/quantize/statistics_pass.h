#pragma once
#include "halftone/quantize/operand.h"

namespace halftone {

// Whether a quantiser must read the full matrix before it can write the first code of this copy: a tensor, column or two-level scale, or
// the largest block that e4m3 folds against, depends on all of it. A single row can be kept on chip meanwhile; 32 rows (tiles) or columns
// cannot.
constexpr bool needs_statistics_pass(const OperandSpec& s, ValueForm form, bool transposed) {
  return s.granularity == Granularity::tensor || s.two_level == TwoLevel::tensor || form == ValueForm::fold_e5m2 ||
         (form == ValueForm::fold_e4m3 && s.granularity == Granularity::tile) ||
         (transposed && (s.granularity == Granularity::row || form == ValueForm::fold_e4m3));
}

}  // namespace halftone
