#pragma once
#include <vector>

#include "halftone/formats/support.h"
#include "halftone/ops/operand.h"

namespace halftone {

// out[M, N] (+)= a[M, k] . b[N, k]^T with quantised or plain operands: block scales applied exactly, scales of rows, tensors and
// 128-blocks in fp32, one rounding to out's dtype (numerics.md 7.1).
struct ProductOptions {
  bool accumulate = false;  // add to out
  bool overwrite = false;   // with accumulate: ignore the contents of out
  bool fast_accum = false;  // fp8 tensor cores only
  bool emulate = false;     // dequantise both operands to fp32, all scales applied
  at::Tensor bias;          // fp32 [N], added before rounding
};
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);

// The copy of a matrix that a GEMM reads: row-wise, or transposed. kept: transposed and held until the backward pass, so that its size
// matters more than its decoding time.
enum class CopyUse { rows, columns, kept };

// Which of the quantiser's outputs the GEMM of `spec` with an operand `other` reads on the device; hp is the dtype of unquantised
// operands.
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType device, CopyUse use,
                            bool emulate);

// The right operand of many GEMMs (a weight), reduced to the tensors that they read. Several siblings side by side only on the CPU:
// unquantised or with per-row scales, in whole panels.
Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate);

// Memory estimate for any hardware, present or not: bytes per element of the copy, including its block scales, and bytes per element of a
// weight after right_operand. 0: the matrix itself is read.
double copy_bytes(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, Hardware hardware, CopyUse use, bool emulate);
double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, Hardware hardware, bool emulate);

}  // namespace halftone
