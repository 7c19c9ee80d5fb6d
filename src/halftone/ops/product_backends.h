#pragma once
#include "halftone/ops/product.h"

namespace halftone {

// ops/product.h on our CPU kernels (gemm/cpu/gemm.h).
namespace cpu {
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
Operand right_operand(const std::vector<Operand>& siblings, const UnitInput& units);
}  // namespace cpu

// The same on the kernels of halftone_cuda.so.
namespace cuda {
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
Operand right_operand(const std::vector<Operand>& siblings, const UnitInput& units);
}  // namespace cuda

}  // namespace halftone
