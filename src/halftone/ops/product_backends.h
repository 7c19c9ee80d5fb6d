#pragma once
#include "halftone/formats/support.h"
#include "halftone/ops/product.h"

namespace halftone {

// ops/product.h on our CPU kernels (gemm/cpu/gemm.h).
namespace cpu {
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, bool emulate);
Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate);
double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, bool emulate);
}  // namespace cpu

// The same on the kernels of halftone_cuda.so.
namespace cuda {
void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options);
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, bool emulate);
// For a device of the given kind, which need not be present.
CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, bool emulate,
                            Hardware hardware);
double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, bool emulate, Hardware hardware);
Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate);
}  // namespace cuda

}  // namespace halftone
