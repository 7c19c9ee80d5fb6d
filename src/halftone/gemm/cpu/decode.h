#pragma once
#include "halftone/base/dtype.h"
#include "halftone/quantize/operand.h"

namespace halftone::gemm {

// Numbers that codes stand for, read from `codes` or `packed` of a copy [rows, cols] (quantize/operand.h).
//   values      value of the code times block scales of e8m0, e4m3 or ue5m3, which leaves at most 6 significant bits: exact
//               in bf16. Scales of rows, tensors and fp32 blocks, outer and macro factors stay outside (product_scales).
//               uint4: zero + code * scale, rounded to the type. s8: integer codes as they are.
//   everything  all factors applied, in fp32 (x ~ this).
enum class Decode { values, everything };
void decode(const QuantizedCopy& copy, int64_t rows, int64_t cols, Decode what, DType type, void* out);

// Whether factors per 128 elements of the contraction stay outside the values: fp32 block scales and macro blocks.
constexpr bool scaled_by_block(const OperandSpec& s) {
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  return s.two_level == TwoLevel::macro || (blocks && s.scale == ScaleFormat::fp32 && s.element != Element::uint4) ||
         (blocks && s.scale == ScaleFormat::fp32_pow2);
}
// These factors, as [ceil(cols / 128), rows].
void block_scales(const QuantizedCopy& copy, int64_t rows, int64_t cols, float* out);

inline constexpr int64_t kScaleBlock = 128;

}  // namespace halftone::gemm
