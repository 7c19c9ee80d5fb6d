#pragma once
#include "halftone/ops/product.h"

// The products of ops/product.h by our CPU kernels (gemm/cpu/gemm.h).
namespace halftone::cpu {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, bool kept, bool emulate);
void prepare_right(Operand& b, const OperandSpec& a, at::ScalarType hp, bool emulate);

}  // namespace halftone::cpu
