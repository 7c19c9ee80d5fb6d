#pragma once
#include "halftone/ops/operand.h"

namespace halftone {

// out[M, N] (+)= a[M, k] . b[N, k]^T of quantised or plain operands, block scales applied exactly, factors of rows, tensors
// and 128-blocks in fp32, one rounding to out's dtype (numerics.md 7.1).
struct ProductOptions {
  bool accumulate = false;  // add to out
  bool over_zeros = false;  // accumulate: out holds zeros, which need not be read
  bool fast_accum = false;  // fp8 tensor cores only
  bool emulate = false;     // both operands dequantised to fp32, every factor included
  at::Tensor bias;          // fp32 [N], added before the rounding
};
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);

// Which of the quantiser's outputs the product of `spec` with an operand `other` reads on the device; hp is the dtype of
// unquantised operands. `kept`: the copy waits for the backward pass, where its size counts and not the time to decode it.
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType device, bool kept,
                            bool emulate);

// Brings a right operand that serves many products (a weight) into the form that they read, and drops the rest.
void prepare_right(Operand& b, const OperandSpec& a, at::ScalarType hp, bool emulate);

}  // namespace halftone
