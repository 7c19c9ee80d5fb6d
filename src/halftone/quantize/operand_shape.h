#pragma once
#include "halftone/formats/float_code.h"
#include "halftone/formats/int_spec.h"
#include "halftone/quantize/operand.h"

namespace halftone {

constexpr bool is_float(Element e) { return e >= Element::e4m3 && e <= Element::e2m1; }
constexpr Float float_of(Element e) { return static_cast<Float>(static_cast<int>(e) - static_cast<int>(Element::e4m3)); }
constexpr Int int_of(Element e) { return static_cast<Int>(static_cast<int>(e) - static_cast<int>(Element::int8)); }
constexpr int bits_of(Element e) { return e == Element::hp ? 32 : is_float(e) ? spec(float_of(e)).bits() : spec(int_of(e)).bits; }
static_assert(float_of(Element::e4m3) == Float::e4m3 && float_of(Element::e2m1) == Float::e2m1);
static_assert(int_of(Element::int8) == Int::int8 && int_of(Element::ternary) == Int::ternary);

// Rows and columns of a block in an [R, C] copy; tensor and row scales span the full extent.
struct BlockShape {
  int64_t rows, cols;
};
constexpr BlockShape block_shape(const OperandSpec& s, int64_t R, int64_t C) {
  switch (s.granularity) {
    case Granularity::block:
      return {1, s.block};
    case Granularity::tile:
      return {s.block, s.block};
    case Granularity::row:
      return {1, C > 0 ? C : 1};
    default:
      return {R > 0 ? R : 1, C > 0 ? C : 1};
  }
}
constexpr bool has_byte_scales(ScaleFormat f) { return f == ScaleFormat::e8m0 || f == ScaleFormat::e4m3 || f == ScaleFormat::ue5m3; }
// Range of an integer operand's codes; that of blocks is symmetric.
constexpr IntSpec int_range(const OperandSpec& s) {
  IntSpec range = spec(int_of(s.element));
  if (has_byte_scales(s.scale)) range.lowest = -range.highest;
  return range;
}
constexpr bool is_fold(ValueForm f) { return f == ValueForm::fold_e4m3 || f == ValueForm::fold_e5m2; }

// Bytes of `n` packed codes of a row: two 4-bit codes per byte, four 6-bit codes in three bytes, four ternary codes per byte (numerics.md
// 2.3).
constexpr int64_t packed_bytes(Element e, int64_t n) { return n * (e == Element::ternary ? 2 : bits_of(e) == 6 ? 6 : bits_of(e)) / 8; }
constexpr int64_t packed_group(Element e) { return bits_of(e) == 4 ? 2 : 4; }  // codes that share whole bytes

}  // namespace halftone
