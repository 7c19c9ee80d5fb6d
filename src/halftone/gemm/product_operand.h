#pragma once
#include "halftone/gemm/product.h"
#include "halftone/quantize/operand.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::gemm {

// The quantised copy [rows, k] as the device GEMM reads it: the requested form (values if there are any, else codes) with the
// factors that this form leaves out (numerics.md 7.1). Null data: no GEMM supports it.
//   fp8, int8, int4, ternary   codes, with tensor, row, block128 or tile128 scales
//   mxfp4                      fold_e4m3 (one factor per row) or fold_e5m2 (one factor); bf16 values: the exact fallback
//   mxfp8, nvfp4, amdfp4       bf16 values, with the outer scale
inline ProductOperand product_operand(const QuantizedCopy& copy) {
  ProductOperand x;
  const OperandSpec& s = copy.spec;
  const auto* scales = static_cast<const float*>(copy.scales);
  x.outer = s.two_level == TwoLevel::tensor ? copy.outer : nullptr;
  if (s.two_level == TwoLevel::macro) x.macro = copy.macro, x.macro_tiles = s.granularity == Granularity::tile;
  if (copy.form == ValueForm::fold_e4m3 || copy.form == ValueForm::fold_e5m2) {
    const bool rows = copy.form == ValueForm::fold_e4m3;
    x.numbers = rows ? Numbers::e4m3 : Numbers::e5m2;
    x.data = copy.values, x.scale = copy.fold_scale;
    x.scales = rows ? Scales::row : Scales::tensor;
    return x;
  }
  const bool factor_outside = s.granularity == Granularity::tensor || s.granularity == Granularity::row;
  const bool blocks_outside = s.block == 128 && !has_byte_scales(s.scale);
  if (factor_outside) x.scale = scales, x.scales = s.granularity == Granularity::tensor ? Scales::tensor : Scales::row;
  if (blocks_outside) x.scale = scales, x.scales = s.granularity == Granularity::block ? Scales::block128 : Scales::tile128;
  if (copy.form == ValueForm::bf16 || copy.form == ValueForm::f32) {
    x.numbers = copy.form == ValueForm::bf16 ? Numbers::bf16 : Numbers::f32;
    x.data = copy.values;
    return x;
  }
  switch (s.element) {
    case Element::e4m3:
      x.numbers = Numbers::e4m3;
      break;
    case Element::e5m2:
      x.numbers = Numbers::e5m2;
      break;
    case Element::int8:
    case Element::int4:
    case Element::ternary:
      x.numbers = Numbers::s8;
      break;
    default:
      return x;
  }
  if (factor_outside || blocks_outside) x.data = copy.codes;
  return x;
}

}  // namespace halftone::gemm
