#pragma once
#include <vector>

#include "halftone/ops/operand.h"

namespace halftone {

// out[M, N] (+)= a[M, k] . b[N, k]^T with quantised or plain operands: block scales applied exactly, scales of rows, tensors and 128-blocks
// in fp32, one rounding to out's dtype (numerics.md 7.1).
struct ProductOptions {
  bool accumulate = false;  // add to out
  bool overwrite = false;   // with accumulate: ignore the contents of out
  bool fast_accum = false;  // fp8 tensor cores only
  bool emulate = false;     // dequantise both operands to fp32, all scales applied
  bool invariant = false;   // a row's sums do not depend on the number of rows (ops/batch_invariant.h)
  at::Tensor bias;          // fp32 [N], added before rounding
};
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);

// The right operand of many GEMMs (a weight), reduced to the tensors that the units read. Several siblings side by side only on the CPU:
// unquantised or with per-row scales, in whole panels.
Operand right_operand(std::vector<Operand> siblings, const UnitInput& units);

}  // namespace halftone
