#pragma once
#include "halftone/base/dtype.h"
#include "halftone/ops/operand.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/reads_twice.h"

// Bytes that a quantizer must move: one read of the matrix, a second one if it must be known before the first code (reads_twice), and all
// writes. Scales that are part of `values` (folded codes, bf16 values) do not count.
namespace halftone::bench {

// Bytes written for one copy [rows, k].
inline double bytes_written(const CopyRequest& r, int64_t rows, int64_t k) {
  const double n = static_cast<double>(rows) * static_cast<double>(k);
  double bytes = (r.codes ? n : 0) + (r.packed ? n / 2 : 0) + (r.panels ? n * static_cast<double>(size_of(panel_type(r.spec))) : 0);
  if (is_fold(r.form)) return bytes + n + 4.0 * static_cast<double>(r.form == ValueForm::fold_e4m3 ? rows : 1);
  if (r.form != ValueForm::none) bytes += n * (r.form == ValueForm::f32 ? 4 : 2);
  const bool scales_apart = r.form == ValueForm::none || !has_byte_scales(r.spec.scale);
  if (!scales_apart) return bytes;
  const BlockShape b = block_shape(r.spec, rows, k);
  const auto blocks = static_cast<double>((rows + b.rows - 1) / b.rows * ((k + b.cols - 1) / b.cols));
  return bytes + blocks * (has_byte_scales(r.spec.scale) ? 1 : 4);
}

// Bytes read and written for the requested copies of a matrix [rows, cols]; null: none.
inline double quantiser_bytes(int64_t rows, int64_t cols, double element_size, const CopyRequest* row, const CopyRequest* transposed) {
  if (row == nullptr && transposed == nullptr) return 0;
  const bool twice = (row != nullptr && reads_twice(row->spec, row->form, false)) ||
                     (transposed != nullptr && reads_twice(transposed->spec, transposed->form, true));
  const double read = static_cast<double>(rows) * static_cast<double>(cols) * element_size * (twice ? 2 : 1);
  return read + (row != nullptr ? bytes_written(*row, rows, cols) : 0) +
         (transposed != nullptr ? bytes_written(*transposed, cols, rows) : 0);
}

}  // namespace halftone::bench
