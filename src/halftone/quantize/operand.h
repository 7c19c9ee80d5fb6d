#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/row_groups.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/recipe.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// Form in which a GEMM reads an operand, besides codes and scales (numerics.md 7.1):
//   bf16, f32   code * block scale, without outer, macro and clip (4/3) factors: exact in bf16 for every float element with
//               e8m0, e4m3 or ue5m3 scales. fp32 scales (tensor, row, 1x128, 128x128) are not folded in: the value is then the
//               bare code value. uint4: zero + code * scale, computed in fp32, then rounded.
//   fold_e4m3   mxfp4 only: the e4m3 byte of code * 2^(e_block - e_ref + 6), e_ref from the largest block byte of the row;
//               macro factors are applied separately
//   fold_e5m2   as fold_e4m3, without macro blocks, as e5m2 with 2^(e_block - e_ref + 13), one e_ref per tensor: mx_reference_byte
//               (amax). `fold_scale` multiplies the GEMM result. Blocks far below the reference lose bits or flush to 0: counted.
// Values of a poisoned group are NaN: 0x7FC0, 0x7FC00000, fold byte 0x7F. A reference byte of 255 (a poisoned block in the row, a
// non-finite tensor amax) makes fold_scale NaN and all values it applies to 0x7F. Functions: formats/mx_scale.h.
enum class ValueForm { none, bf16, f32, fold_e4m3, fold_e5m2 };

// One quantised copy of a matrix [rows, cols]. `R` is the non-contracted and `C` the contracted dimension: (rows, cols) for the
// row-wise copy, (cols, rows) for the transposed copy. All outputs are contiguous [R, C]; null outputs are not written.
// Scale layout (numerics.md 2.4), B = spec.block:
//   tensor [1]   row [R]   block [R, ceil(C / B)]   tile [ceil(R / B), ceil(C / B)]
// With groups of rows (QuantizeOperand::groups) the scales that scales_by_group selects are per group: tensor, `outer` and
// fold_e5m2's fold_scale [groups]; in the transposed copy, row scales and fold_e4m3's fold_scale [groups, R].
// C is operand_length(copy, contracted elements): the matrix is treated as zero-padded to this length.
struct QuantizedCopy {
  OperandSpec spec{};
  uint8_t* codes = nullptr;   // one code per byte; integers in two's complement
  uint8_t* packed = nullptr;  // 4-bit codes, [R, C / 2], even element in the low nibble; C even
  void* scales = nullptr;     // fp32 (fp32, fp32_pow2, bf16) or bytes (e8m0, e4m3, ue5m3)
  float* zeros = nullptr;     // uint4: [R, ceil(C / B)]
  float* outer = nullptr;     // [1], TwoLevel::tensor; 1 for block specs without it
  uint8_t* macro = nullptr;   // mantissa bytes of inv_macro: [R, ceil(C / 128)], or [ceil(R / 128), ceil(C / 128)] for tiles
  ValueForm form = ValueForm::none;
  void* values = nullptr;              // [R, C] in the dtype of `form`
  float* fold_scale = nullptr;         // fold_e4m3: [R], fold_e5m2: [1]
  unsigned long long* lost = nullptr;  // [1], += elements changed by the fold, excluding poisoned ones
  // CPU, transposed copies with has_panels: GEMM input panels (quantize/panels.h) of int8 codes or e4m3 values in bf16, C contracted,
  // panels_bytes(panel_type(spec), C, R) bytes. Written with scales, instead of all other outputs.
  void* panels = nullptr;
  Rounding rounding{};    // draws are numbered by (row, column) of the given matrix, in the transposed copy too
  RotationSigns signs{};  // of the Hadamard transform
  // CUDA: device pointer to the step; the kernel then computes the signs as philox(signs_key, 0, step). Null: use `signs`.
  const uint32_t* signs_step = nullptr;
  PhiloxKey signs_key{};
  int64_t length = 0;  // padded C (the GEMM's multiple) if larger than the matrix; else 0
};

// C of a copy's outputs. A rotation pads to full groups, since it maps zeros to other numbers.
constexpr int64_t operand_length(const QuantizedCopy& copy, int64_t contracted) {
  const int64_t n = copy.length > contracted ? copy.length : contracted, h = copy.spec.hadamard;
  return h > 0 ? (n + h - 1) / h * h : n;
}

// Copies for which panels can be written: row scales only, int8 or nearest e4m3.
constexpr bool has_panels(const OperandSpec& s) {
  if (s.granularity != Granularity::row || s.scale_floor != 0 || s.hadamard != 0) return false;
  return s.element == Element::int8 || (s.element == Element::e4m3 && s.scale == ScaleFormat::fp32_pow2 && !s.stochastic);
}
constexpr DType panel_type(const OperandSpec& s) { return s.element == Element::int8 ? DType::s8 : DType::bf16; }

// Whether the copy needs the amax of the full matrix.
constexpr bool uses_tensor_amax(const QuantizedCopy& c) {
  const bool amax_rule = c.spec.element != Element::int4 && c.spec.element != Element::ternary;
  return (c.spec.granularity == Granularity::tensor && amax_rule) || c.spec.two_level == TwoLevel::tensor || c.form == ValueForm::fold_e5m2;
}
// Whether that amax is the one after the rotation.
constexpr bool uses_rotated_amax(const OperandSpec& s) { return s.hadamard != 0 && !s.eden; }
inline constexpr int kAmaxParts = 132;
// Whether element codes depend on which matrix rows form a group; such copies have scales per group.
constexpr bool scales_by_group(const QuantizedCopy& c, bool transposed) {
  const Granularity g = c.spec.granularity;
  return g == Granularity::tensor || uses_tensor_amax(c) || (transposed && (g == Granularity::row || c.form == ValueForm::fold_e4m3));
}

// Gathered matrix: row r is row source[r] / each of x, times weight[source[r]] in fp32 and rounded to the dtype of x if there are weights;
// zeros if source[r] is -1. CUDA only.
struct RowSource {
  const int32_t* source = nullptr;  // [rows]; null: the matrix is x
  int64_t each = 1;                 // matrix rows per row of x (top-k)
  const float* weight = nullptr;    // null: 1
  // [rows / kGroupRows], null: ascending. Order in which row tiles are read, for L2 locality.
  const int32_t* order = nullptr;
};

// Quantises one matrix row-wise, transposed, or both in one read (numerics.md sections 2 to 5). Bit-exact: CPU, CUDA and the scalar
// reference write the same bytes. MS-EDEN draws one number per block, that of the block's first element, for its scale.
struct QuantizeOperand {
  const void* x = nullptr;   // [rows, cols], row stride ld elements
  DType type = DType::bf16;  // bf16 or f32; rotated elements are rounded to this type
  int64_t rows = 0, cols = 0, ld = 0;
  // bits32(|x|) max of the full logical tensor, if known (sharded tensors, amax fused into the producer). Null: computed here if a tensor,
  // two-level or e5m2-folded copy needs it. Host pointer on the CPU, device pointer on CUDA. A rotated copy ignores it, except MS-EDEN: it
  // needs the amax after the rotation, which a producer cannot know.
  const uint32_t* amax = nullptr;
  // CUDA, matrices that are read twice: output for the amax pass, kAmaxParts words whose maximum is the amax, or null. amax_parts: number
  // of words in `amax`, 1 or kAmaxParts.
  uint32_t* found_amax = nullptr;
  int amax_parts = 1;
  // CUDA: x is fp32, and every element is first rounded to bf16 (nearest even). Copies must not rotate.
  bool as_bf16 = false;
  // CUDA: rows in groups, rows a multiple of kGroupRows, no padded length of the transposed copy. Every byte equals that of the group's
  // rows quantised as a separate matrix, with Rounding::first_row raised by the group's offset; an empty group has the scales of an empty
  // matrix. Codes, values and the scales of blocks, tiles and the row copy's rows are laid out as for the full matrix. Rows after the last
  // group are quantised as one more group whose per-group scales are not written. `amax` and `found_amax` are not used; `ends` is not read.
  RowGroups groups{};
  // CUDA, with groups: rows per group if all groups are equal and cover all rows, else 0. Groups that are read twice are then processed a
  // few at a time, so that the second read hits the L2 cache.
  int64_t group_rows = 0;
  // CUDA, with groups: source rows in x (row stride ld). No ternary copies.
  RowSource from{};
  bool want_row = false, want_transposed = false;
  QuantizedCopy row, transposed;
};

// CPU: uses the best instruction set; results depend neither on it nor on the thread count. Throws Error on an invalid description
// (quantize/check_operand.h).
void quantize_operand(const QuantizeOperand& p, Isa isa = best_isa());

}  // namespace halftone
