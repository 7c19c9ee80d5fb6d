#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/row_groups.h"
#include "halftone/formats/recipe.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// The form in which a product reads an operand, besides codes and scales (numerics.md 7.1):
//   bf16, f32   code * block scale, without outer, macro and clip (4/3) factors: exact in bf16 for every float element with
//               e8m0, e4m3 or ue5m3 scales. fp32 scales (tensor, row, 1x128, 128x128) are not folded in: then it is the value
//               of the code. uint4: zero + code * scale. The product is formed in fp32, then rounded.
//   fold_e4m3   mxfp4 only: the e4m3 byte of code * 2^(e_block - e_ref + 6), e_ref from the largest block byte of the row;
//               macro factors stay outside
//   fold_e5m2   likewise, without macro blocks, as e5m2 with 2^(e_block - e_ref + 13), one e_ref for the tensor: mx_reference_byte
//               (amax). `fold_scale` is what the product multiplies by. Blocks far below the reference lose bits or flush: counted.
// A poisoned group's values are NaN: 0x7FC0, 0x7FC00000, fold byte 0x7F. A reference byte of 255 (a poisoned block in the row, a
// tensor's amax that is not finite) makes fold_scale NaN and all values that go with it 0x7F. Functions: formats/mx_scale.h.
enum class ValueForm { none, bf16, f32, fold_e4m3, fold_e5m2 };

// One quantised copy of a matrix [rows, cols]. `R` runs over the non-contracted index and `C` over the contracted one:
// (rows, cols) for the copy read along cols, (cols, rows) for the transposed one. Everything is contiguous [R, C]; null
// outputs are not written. Scale layout (numerics.md 2.4), B = spec.block:
//   tensor [1]   row [R]   block [R, ceil(C / B)]   tile [ceil(R / B), ceil(C / B)]
// With groups of rows (QuantizeOperand::groups) every group has those that scales_by_group says for itself: tensor, `outer` and fold_e5m2's
// fold_scale [groups]; of a transposed copy row and fold_e4m3's fold_scale [groups, R].
// C is operand_length(copy, contracted elements): results are those of the matrix with zeros appended up to it.
struct QuantizedCopy {
  OperandSpec spec{};
  uint8_t* codes = nullptr;   // one code a byte; integers in two's complement
  uint8_t* packed = nullptr;  // 4-bit codes, [R, C / 2], even element in the low nibble; C even
  void* scales = nullptr;     // fp32 (fp32, fp32_pow2, bf16) or bytes (e8m0, e4m3, ue5m3)
  float* zeros = nullptr;     // uint4: [R, ceil(C / B)]
  float* outer = nullptr;     // [1], TwoLevel::tensor; 1 for a block spec without it
  uint8_t* macro = nullptr;   // mantissa bytes of inv_macro: [R, ceil(C / 128)], or [ceil(R / 128), ceil(C / 128)] for tiles
  ValueForm form = ValueForm::none;
  void* values = nullptr;              // [R, C] in the element type of `form`
  float* fold_scale = nullptr;         // fold_e4m3: [R], fold_e5m2: [1]
  unsigned long long* lost = nullptr;  // [1], += elements that the fold changed, poisoned ones excluded
  // CPU, a transposed copy that has_panels: what the product reads (quantize/panels.h), int8 codes or e4m3 values in bf16, C contracted,
  // panels_bytes(panel_type(spec), C, R) bytes; with scales, and in place of all else.
  void* panels = nullptr;
  Rounding rounding{};  // draws are numbered by the element of the given matrix (row, column), also in the transposed copy
  uint32_t signs = 0;   // of the Hadamard rotation: bit j set -> sigma_j = -1 (j < spec.hadamard)
  // CUDA: device memory that holds the step, of which the signs follow when the kernel runs, philox(signs_key, 0, step)[0];
  // null: `signs`.
  const uint32_t* signs_step = nullptr;
  PhiloxKey signs_key{};
  int64_t length = 0;  // C where it is more than the matrix has: the products' multiple, or 0
};

// C of a copy's outputs: a rotation fills whole groups of tokens, since zero rows do not stay zero under it.
constexpr int64_t operand_length(const QuantizedCopy& copy, int64_t contracted) {
  const int64_t n = copy.length > contracted ? copy.length : contracted, h = copy.spec.hadamard;
  return h > 0 ? (n + h - 1) / h * h : n;
}

// Copies whose quantiser can write panels: one scale a row and nothing beside it, int8 or nearest e4m3.
constexpr bool has_panels(const OperandSpec& s) {
  if (s.granularity != Granularity::row || s.scale_floor != 0 || s.hadamard != 0) return false;
  return s.element == Element::int8 || (s.element == Element::e4m3 && s.scale == ScaleFormat::fp32_pow2 && !s.stochastic);
}
constexpr DType panel_type(const OperandSpec& s) { return s.element == Element::int8 ? DType::s8 : DType::bf16; }

// Copies that need the largest magnitude of the whole matrix.
constexpr bool uses_tensor_amax(const QuantizedCopy& c) {
  const bool amax_rule = c.spec.element != Element::int4 && c.spec.element != Element::ternary;
  return (c.spec.granularity == Granularity::tensor && amax_rule) || c.spec.two_level == TwoLevel::tensor || c.form == ValueForm::fold_e5m2;
}
inline constexpr int kAmaxParts = 132;
// Copies whose elements' codes depend on which rows of the matrix a group has, and which so have scales for each group.
constexpr bool scales_by_group(const QuantizedCopy& c, bool transposed) {
  const Granularity g = c.spec.granularity;
  return g == Granularity::tensor || uses_tensor_amax(c) || (transposed && (g == Granularity::row || c.form == ValueForm::fold_e4m3));
}

// A matrix whose rows are some of another one's, x: row r is row source[r] / each of x, times weight[source[r]] in fp32 and rounded to the
// type of x where there are weights, and zeros where source[r] is -1. On a device.
struct RowSource {
  const int32_t* source = nullptr;  // [rows]; null: the matrix is x
  int64_t each = 1;                 // rows of the matrix that a row of x is in
  const float* weight = nullptr;    // null: 1
  // [rows / kGroupRows], null: from the first to the last. In which order tiles of rows are read, for the L2 cache's sake.
  const int32_t* order = nullptr;
};

// Quantises one matrix along its columns' direction, transposed, or both from one read (numerics.md sections 2 to 5).
// Bit-exact: CPU, CUDA and the scalar reference write the same bytes. Only a transposed copy may rotate (tokens are rows).
struct QuantizeOperand {
  const void* x = nullptr;   // [rows, cols], row stride ld elements
  DType type = DType::bf16;  // bf16 or f32; rotated elements are rounded to it
  int64_t rows = 0, cols = 0, ld = 0;
  // bits32(|x|) max of the whole logical tensor where it is known (sharded tensors, amax fused into the producer); null:
  // computed here where a tensor, two-level or e5m2-folded copy needs it. Host pointer on the CPU, device pointer on CUDA.
  // A rotated copy does not use it: its amax is that after the rotation, which a producer cannot know.
  const uint32_t* amax = nullptr;
  // CUDA, for a matrix that is read twice: where a search for it leaves kAmaxParts words whose largest it is, or null; and how many words
  // `amax` has, one or those.
  uint32_t* found_amax = nullptr;
  int amax_parts = 1;
  // CUDA: x is fp32, and every element is rounded to bf16 (nearest even) before all else. No copy rotates.
  bool as_bf16 = false;
  // CUDA: rows in groups, rows a multiple of kGroupRows, without a padded length of the transposed copy. Every byte is what the group's
  // rows have as a matrix of their own, with Rounding::first_row raised by the group's offset; an empty group has the scales of an empty
  // matrix. Codes, values and the scales of blocks, tiles and the row copy's rows lie as those of the whole matrix. Rows beyond the last
  // group are quantised as a group whose own scales are not written. `amax` and `found_amax` are not used; `ends` is not read.
  RowGroups groups{};
  // CUDA, with groups: the rows of each where all have as many and there are no others, or 0. Groups are then read a few at a time, so that
  // those that are read twice are in the L2 cache.
  int64_t group_rows = 0;
  // CUDA, with groups: where the rows lie that x, of row stride ld, has. No ternary copies.
  RowSource from{};
  bool want_row = false, want_transposed = false;
  QuantizedCopy row, transposed;
};

// On the CPU, by the best instruction set; results depend neither on it nor on the number of threads. Throws Error on an
// impossible description (quantize/check_operand.h).
void quantize_operand(const QuantizeOperand& p, Isa isa = best_isa());

}  // namespace halftone
