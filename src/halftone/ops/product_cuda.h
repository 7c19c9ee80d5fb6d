#pragma once
#include "halftone/ops/product.h"

// ops/product.h on a CUDA device, by the kernels of halftone_cuda.so.
namespace halftone::cuda {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, bool kept, bool emulate);
void prepare_right(Operand& b, const OperandSpec& a, at::ScalarType hp, bool emulate);

}  // namespace halftone::cuda
