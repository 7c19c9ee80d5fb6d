#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "halftone/gemm/decode.h"
#include "halftone/quantize/operand.h"

namespace halftone {

// What the quantiser is asked to write of one copy of a matrix; of an unquantised one nothing, it is the matrix itself.
struct CopyRequest {
  OperandSpec spec{};
  Rounding rounding{};
  uint32_t signs = 0;  // of the Hadamard rotation, or what they follow from (quantize/operand.h)
  const uint32_t* signs_step = nullptr;
  PhiloxKey signs_key{};
  bool codes = false, packed = false, panels = false;
  ValueForm form = ValueForm::none;
  bool block_scales = false;  // those of bytes beside values alone, too, which hold them: a device leaves them out otherwise
  int64_t multiple = 1;       // the contraction is filled up with zeros to a multiple of it
};

// One operand of a product in memory, [rows, k] with k contracted; the tensors of a QuantizedCopy (quantize/operand.h), or
// an unquantised matrix in `values`, of which `values_transposed` says that it lies as [k, rows].
struct Operand {
  OperandSpec spec{};
  int64_t rows = 0, k = 0;
  int64_t groups = 0;               // of rows of the matrix it is a copy of: scales_by_group says which scales each has for itself
  at::Tensor codes, packed;         // bytes [rows, k], [rows, k / 2]
  at::Tensor scales, zeros, outer;  // fp32, or bytes for e8m0, e4m3 and ue5m3 scales; those may be undefined, see CopyRequest::block_scales
  at::Tensor macro;                 // bytes
  ValueForm form = ValueForm::none;  // of values
  at::Tensor values, fold_scale, lost;
  bool values_transposed = false;
  at::Tensor panels;  // CPU: the values as the product reads them (quantize/panels.h) in panel_type
  DType panel_type = DType::bf16;

  bool defined() const { return rows > 0 || values.defined() || codes.defined(); }
};

// The copies of one matrix x[rows, cols] that products read: along its rows, and transposed.
struct OperandCopies {
  Operand row, transposed;
};

// Rows in groups, each quantised as a matrix of its own; with from.source `rows` rows that lie where that says, and none of the copies is
// the rows themselves.
struct GroupedRows {
  RowGroups groups;
  RowSource from{};
  int64_t rows = 0;
  int64_t each = 0;  // rows of each group, where all have as many and there are no others, or 0
};

// Both copies, from one read where both are quantised; a null request is not made. x is bf16 or fp32 with unit column stride. Zeros
// appended for a rotation or for `multiple` are counted in `k` (operand_length).
// amax: the largest magnitude of x where its producer gave it (ops/activation.h), else undefined. as_bf16: of x rounded to bf16.
// found: undefined or of an earlier call with the same matrix; a device leaves the largest magnitude there where it searches for it, and
// finds it there. groups: null, or on a device alone; amax and found are not used then.
OperandCopies quantize(const at::Tensor& x, const CopyRequest* row, const CopyRequest* transposed, const at::Tensor& amax = {},
                       bool as_bf16 = false, at::Tensor* found = nullptr, const GroupedRows* groups = nullptr);

// x itself as an operand: [rows, k], or [k, rows] with `transposed`.
Operand plain_operand(const at::Tensor& x, bool transposed);

// The tensors of a copy along rows that have something for each of these, in the order of the matrix; not of tiles. And some of its rows.
std::vector<at::Tensor*> tensors_of_rows(Operand& operand);
Operand rows_of(Operand operand, int64_t first, int64_t rows);

// The numbers that the codes stand for, [rows, k] (gemm/decode.h); dequantize: every factor included, fp32. A rotation is not
// undone. Not of groups of rows.
at::Tensor decode(const Operand& operand, gemm::Decode what, at::ScalarType type);
at::Tensor dequantize(const Operand& operand);

QuantizedCopy view(const Operand& operand);

// Which of its tensors a product reads: "int8 panels".
std::string form_text(const Operand& operand);

}  // namespace halftone

// "int8 row [512 x 256] as int8 panels": an operand as a product reads it, in logs and errors.
template <>
struct fmt::formatter<halftone::Operand> : fmt::formatter<std::string> {
  fmt::format_context::iterator format(const halftone::Operand& operand, fmt::format_context& context) const;
};
