#pragma once
#include <bit>

#include "halftone/base/dtype.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::gemm {

// Decodes `codes` or `packed` of a copy [rows, cols] (quantize/operand.h).
//   values      value of the code times block scales of e8m0, e4m3 or ue5m3: at most 6 significant bits, exact in bf16.
//               Row, tensor and fp32 block scales, outer and macro factors are not applied (product_scales).
//               uint4: zero + code * scale, rounded to the type. s8: integer codes as they are.
//   everything  all factors applied, in fp32 (x ~ this).
enum class Decode { values, everything };
struct DecodeCopy {
  QuantizedCopy copy;
  int64_t rows = 0, cols = 0;
  Decode what = Decode::values;
  DType type = DType::bf16;  // dtype of out: bf16, f32 or s8
  void* out = nullptr;       // [rows, cols]
};
void decode(const DecodeCopy& p);

// Whether factors per 128 elements of the contraction are kept out of the values: fp32 block scales and macro blocks.
constexpr bool scaled_by_block(const OperandSpec& s) {
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  return s.two_level == TwoLevel::macro || (blocks && !has_byte_scales(s.scale) && s.element != Element::uint4);
}
// Writes these factors as [ceil(cols / 128), rows].
void block_scales(const QuantizedCopy& copy, int64_t rows, int64_t cols, float* out);

inline constexpr int64_t kScaleBlock = 128;

// Value of an element code, also of either half of a packed byte. The table of all codes covers every element.
constexpr float code_value(Element e, uint8_t code) {
  if (is_float(e)) return decode(float_of(e), bits_of(e) == 4 ? code & 0xF : code);
  if (e == Element::int4) return static_cast<float>(static_cast<int8_t>(code << 4) >> 4);
  return e == Element::uint4 ? static_cast<float>(code & 0xF) : static_cast<float>(static_cast<int8_t>(code));
}

// Scale index of row r, block b along the row; also the macro factor index of row r, 128-block b (numerics.md 3.5).
constexpr int64_t scale_index(const OperandSpec& s, int64_t cols, int64_t r, int64_t b) {
  if (s.granularity == Granularity::tensor) return 0;
  if (s.granularity == Granularity::row) return r;
  return (s.granularity == Granularity::tile ? r / s.block : r) * ((cols + s.block - 1) / s.block) + b;
}
constexpr int64_t macro_index(const OperandSpec& s, int64_t cols, int64_t r, int64_t b) {
  return (s.granularity == Granularity::tile ? r / kScaleBlock : r) * ((cols + kScaleBlock - 1) / kScaleBlock) + b;
}

// Multiplier of a code in row r, block b. `byte_scale`: its block scale if that is a byte, else 1; `full` adds the fp32 scale and the
// outer, clip and macro factors.
constexpr float code_factor(const QuantizedCopy& c, bool full, int64_t cols, int64_t r, int64_t b, float byte_scale) {
  const OperandSpec& s = c.spec;
  float f = has_byte_scales(s.scale)              ? byte_scale
            : full || s.element == Element::uint4 ? static_cast<const float*>(c.scales)[scale_index(s, cols, r, b)]
                                                  : 1.0f;
  if (!full) return f;
  if (s.two_level == TwoLevel::tensor) f *= *c.outer;
  if (s.clip == Clip::fixed) f *= 4.0f / 3.0f;
  if (s.two_level == TwoLevel::macro) f *= 1.0f / inv_macro(c.macro[macro_index(s, cols, r, b * s.block / kScaleBlock)]);
  return f;
}

}  // namespace halftone::gemm
