#pragma once
#include "halftone/fused/step_outcome.h"
#include "halftone/ops/operand.h"
#include "halftone/ops/weight.h"

// Weights stored as codes only (int8_weight, int4_weight; numerics.md section 7), without a master copy.
namespace halftone {

// Allocates a weight [N, K] in the form of `spec`: int8 codes with a scale per row, or uint4 codes with scale and zero point (rounded to
// bf16, held as fp32) per 32 elements of K.
StoredWeight allocate_stored(const OperandSpec& spec, int64_t n, int64_t k, c10::Device device);

// Quantises w[N, K] fp32 with fresh scales: to nearest, or with one draw of L = 32 bits per element (numerics.md 3.7, 4).
// `outcome` as in StoreWeight.
void store(const at::Tensor& w_nk, const Rounding& rounding, StoredWeight& stored, const StepOutcome* outcome = nullptr);
at::Tensor dequantize(const StoredWeight& stored);  // fp32 [N, K]

// As GEMM operands. Along K: the codes. Along N: the codes in `hp` if the scale of an int8 row is applied to the other operand, otherwise
// the dequantised values.
Operand stored_operand(const StoredWeight& stored);
Operand stored_transposed(const StoredWeight& stored, at::ScalarType hp);

}  // namespace halftone
