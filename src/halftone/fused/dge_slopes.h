#pragma once
#include "halftone/base/dtype.h"
#include "halftone/formats/dge.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/quantize/operand.h"

namespace halftone {

// Slopes of the forward quantiser of an e2m1 weight at every element, evaluated before rounding (numerics.md section 6).
struct DgeSlopes {
  const void* w = nullptr;  // [rows, cols], contiguous
  DType type = DType::bf16;
  int64_t rows = 0, cols = 0;
  QuantizedCopy copy;    // row-wise copy of w: spec, scales, outer and macro are read
  float* out = nullptr;  // [rows, cols]
};
void dge_slopes(const DgeSlopes& p);

// How the quantiser scales the element: v = x * spread * factor, or x / factor (chain alto).
struct DgeArgument {
  float factor, spread;
};
constexpr DgeArgument dge_argument(const QuantizedCopy& c, int64_t cols, int64_t r, int64_t j) {
  const OperandSpec& s = c.spec;
  const bool tile = s.granularity == Granularity::tile;
  const int64_t across = (cols + s.block - 1) / s.block, macros = (cols + 127) / 128;
  const uint8_t byte = static_cast<const uint8_t*>(c.scales)[(tile ? r / s.block : r) * across + j / s.block];
  const float spread = s.two_level == TwoLevel::macro ? inv_macro(c.macro[(tile ? r / 128 : r) * macros + j / 128]) : 1.0f;
  if (s.scale == ScaleFormat::e8m0) return {mx_inverse(byte), spread};
  const float outer = c.outer != nullptr ? *c.outer : 1.0f;
  return {fp4_factor(s.chain, s.scale, byte, {outer, 1.0f / outer}), spread};
}
constexpr float dge_slope(const OperandSpec& s, float x, DgeArgument a) {
  return dge_factor(s.scale == ScaleFormat::e8m0 ? x * a.spread * a.factor : fp4_scaled(s.chain, x, a.factor));
}

}  // namespace halftone
