#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "halftone/gemm/decode.h"
#include "halftone/ops/product_plan.h"

namespace halftone {

// One GEMM operand in memory, [rows, k] with k contracted: the tensors of a QuantizedCopy (quantize/operand.h), or an unquantised matrix in
// `values`; values_transposed: it is stored as [k, rows].
struct Operand {
  OperandSpec spec{};
  int64_t rows = 0, k = 0;
  int64_t groups = 0;  // groups of rows in the source matrix: scales_by_group says which scales are per group
  // Weights of experts, [E * rows, k], or with group_ld the experts' copies side by side, [rows, E * k]: elements between experts and,
  // unless it is k, between rows. 0: the rows of all groups form one matrix.
  int64_t group_stride = 0, group_ld = 0;
  at::Tensor codes, packed;  // bytes [rows, k], [rows, k / 2]
  at::Tensor scales, zeros,
      outer;                         // fp32, or bytes (e8m0, e4m3, ue5m3); byte scales may be undefined, see CopyRequest::block_scales
  at::Tensor macro;                  // bytes
  ValueForm form = ValueForm::none;  // of values
  at::Tensor values, fold_scale;
  bool values_transposed = false;
  at::Tensor panels;  // CPU: the values as the GEMM reads them (quantize/panels.h) in panel_type
  DType panel_type = DType::bf16;

  bool defined() const { return rows > 0 || values.defined() || codes.defined(); }
};

// The copies of one matrix x[rows, cols] that GEMMs read: row-wise and transposed.
struct OperandCopies {
  Operand row, transposed;
};

// Groups of rows, each quantised as a matrix of its own. With from.source, `rows` rows are gathered by that index, and neither copy is the
// unquantised rows.
struct GroupedRows {
  RowGroups groups;
  RowSource from{};
  int64_t rows = 0;
  int64_t each = 0;  // rows of each group, if all have equally many and there are no other rows; otherwise 0
};

// Both copies, from one read if both are quantised; a null request is skipped. x is bf16 or fp32 with unit column stride. Zeros appended
// for a rotation or for `multiple` are counted in `k` (operand_length).
// amax: of x if its producer computed it (ops/activation.h), else undefined. as_bf16: of x rounded to bf16.
// found: undefined, or from an earlier call with the same matrix: a GPU stores the amax there once it computes it and reuses it later.
// groups: null, or on a GPU only; amax and found are not used then.
OperandCopies quantize(const at::Tensor& x, const CopyRequest* row, const CopyRequest* transposed, const at::Tensor& amax = {},
                       bool as_bf16 = false, at::Tensor* found = nullptr, const GroupedRows* groups = nullptr);

// x itself as an operand: [rows, k], or [k, rows] with `transposed`.
Operand plain_operand(const at::Tensor& x, bool transposed);

// The tensors of a row-wise copy that have an entry per row, in row order; not for tiles. And a range of its rows.
std::vector<at::Tensor*> tensors_of_rows(Operand& operand);
Operand rows_of(Operand operand, int64_t first, int64_t rows);

// The values that the codes represent, [rows, k] (gemm/decode.h); dequantize: all scales applied, fp32. Does not undo a rotation. Not for
// groups of rows.
at::Tensor decode(const Operand& operand, gemm::Decode what, at::ScalarType type);
at::Tensor dequantize(const Operand& operand);

QuantizedCopy view(const Operand& operand);

// Which of its tensors a GEMM reads: "int8 panels".
std::string form_text(const Operand& operand);

}  // namespace halftone

// "int8 row [512 x 256] as int8 panels": an operand as a GEMM reads it, in logs and errors.
template <>
struct fmt::formatter<halftone::Operand> : fmt::formatter<std::string> {
  fmt::format_context::iterator format(const halftone::Operand& operand, fmt::format_context& context) const;
};
