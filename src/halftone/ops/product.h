#pragma once
#include <vector>

#include "halftone/formats/support.h"
#include "halftone/ops/operand.h"

namespace halftone {

// out[M, N] (+)= a[M, k] . b[N, k]^T of quantised or plain operands, block scales applied exactly, factors of rows, tensors
// and 128-blocks in fp32, one rounding to out's dtype (numerics.md 7.1).
struct ProductOptions {
  bool accumulate = false;  // add to out
  bool overwrite = false;  // accumulate: what out holds does not count
  bool fast_accum = false;  // fp8 tensor cores only
  bool emulate = false;     // both operands dequantised to fp32, every factor included
  at::Tensor bias;          // fp32 [N], added before the rounding
};
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);

// The copy of a matrix that a product reads: along its rows, or transposed; kept: transposed, and it waits for the backward pass, where
// its size counts and not the time to decode it.
enum class CopyUse { rows, columns, kept };

// Which of the quantiser's outputs the product of `spec` with an operand `other` reads on the device; hp is the dtype of
// unquantised operands.
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType device, CopyUse use,
                            bool emulate);

// The right operand of many products (a weight) in the form that they read, and nothing else of it. Several, siblings side by side, on
// the CPU alone: unquantised or with one scale a row, of whole panels.
Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate);

// The same in numbers, of hardware that need not be there: bytes of memory that an element of the copy takes, scales of its blocks
// included, and those of a weight as right_operand leaves it. 0: the matrix itself is read.
double copy_bytes(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, Hardware hardware, CopyUse use, bool emulate);
double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, Hardware hardware, bool emulate);

}  // namespace halftone
