#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/panels.h"

namespace halftone {

// e4m3 quantisation with one power-of-two scale per row, per column, or both (numerics.md 3.1 with pow2, recipe
// fp8_rowwise), bit-exact on every ISA:
//   inv_scale = amax < 1e-12 ? 4.48e14 : 448 / amax, rounded down to a power of two; scale = 1 / inv_scale;
//   code = RNE_sat(x * inv_scale); a group with NaN or infinity: scale NaN, codes 0x7F.
// Also writes the codes' values as bf16 (every e4m3 value is exact in bf16), so that a GEMM of scaled operands is the bf16 GEMM
// of the values with scale_m and scale_n in its epilogue. Null outputs are not written.
struct Fp8Rowwise {
  const void* x = nullptr;   // [rows, cols], row stride ld elements
  DType type = DType::bf16;  // bf16 or f32
  int64_t rows = 0, cols = 0, ld = 0;

  uint8_t* row_codes = nullptr;  // [rows, cols], contiguous
  bf16* row_values = nullptr;    // [rows, cols], contiguous
  float* row_scale = nullptr;    // [rows]; required by both
  uint8_t* col_codes = nullptr;  // [rows, cols], contiguous
  void* col_panels = nullptr;    // values: panels_bytes(bf16, rows, cols) bytes, contraction = rows; 64-byte aligned
  float* col_scale = nullptr;    // [cols]; required by both
};

void fp8_rowwise(const Fp8Rowwise& p, Isa isa = best_isa());

}  // namespace halftone
