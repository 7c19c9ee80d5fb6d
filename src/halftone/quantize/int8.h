#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/panels.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// Dynamic int8 quantisation by rows, by columns, or both in one call (numerics.md 3.7, 2.2, 4), bit-exact on every ISA:
//   scale = max(amax / 127, 1e-12), inv = 1 / scale, code = clip(round(x * inv), -127, 127)
// A row or column with a NaN or an infinity gets scale NaN and codes 0. Any subset of outputs; null outputs are skipped.
//   forward X, dgrad dY: row_codes + row_scale.       wgrad X, dY: col_panels + col_scale.
//   weight W[N, K]: row_codes (then pack_rows) for the forward GEMM, col_panels for the dgrad GEMM (contraction N).
struct Int8Quantize {
  const void* x = nullptr;   // [rows, cols], row stride ld elements
  DType type = DType::bf16;  // bf16 or f32
  int64_t rows = 0, cols = 0, ld = 0;

  int8_t* row_codes = nullptr;  // [rows, cols], row stride row_codes_ld
  int64_t row_codes_ld = 0;     // 0: cols
  float* row_scale = nullptr;   // [rows]; required with row_codes
  void* col_panels = nullptr;   // panels_bytes(s8, rows, cols) bytes, contraction = rows; 64-byte aligned
  float* col_scale = nullptr;   // [cols]; required with col_panels

  Rounding row_rounding{}, col_rounding{};
};

// Multithreaded (base/parallel.h); results do not depend on the thread count. Throws Error on an invalid description.
void int8_quantize(const Int8Quantize& p, Isa isa = best_isa());

}  // namespace halftone
