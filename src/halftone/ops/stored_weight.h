#pragma once
#include "halftone/fused/step_outcome.h"
#include "halftone/ops/operand.h"
#include "halftone/ops/weight.h"

// Weights that exist as codes only (int8_weight, int4_weight; numerics.md section 7): no master copy.
namespace halftone {

// Memory for a weight [N, K] in the form of `spec`: int8 codes with a scale per row, or uint4 codes with scale and zero
// point (rounded to bf16, held as fp32) per 32 of K.
StoredWeight allocate_stored(const OperandSpec& spec, int64_t n, int64_t k, c10::Device device);

// w[N, K] fp32 becomes codes under fresh scales: to nearest, or with one draw of L = 32 bits per element (numerics.md 3.7, 4).
// `outcome` as in StoreWeight.
void store(const at::Tensor& w_nk, const Rounding& rounding, StoredWeight& stored, const StepOutcome* outcome = nullptr);
at::Tensor dequantize(const StoredWeight& stored);  // fp32 [N, K]

// As operands of products. Along K: the codes. Along N: the codes in `hp` where the scale of an int8 row belongs to the other
// operand, else the dequantised numbers.
Operand stored_operand(const StoredWeight& stored);
Operand stored_transposed(const StoredWeight& stored, at::ScalarType hp);

}  // namespace halftone
