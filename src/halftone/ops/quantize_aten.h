#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "halftone/formats/recipe.h"

namespace halftone::aten {

struct Quantized {
  at::Tensor codes;  // int8 or float8_e4m3fn, shape of the input
  at::Tensor scale;  // fp32 [rows, 1]: x is about codes * scale
};

// Row-wise dynamic quantisation of x[R, C] (numerics.md 3.1, 3.7) in portable tensor operations. With stochastic rounding
// the draw of element (r, c) has counter index (first + r) * C + c in the stream `key` (section 4), first being the step
// context's first row for activations and 0 for weights; `transposed` says that x is a transposed view, whose logical
// element is (c, r).
enum class Operand { activation, weight };
Quantized quantize_rows(const at::Tensor& x, const OperandSpec& spec, const std::string& key = {}, bool transposed = false,
                        Operand operand = Operand::activation);

}  // namespace halftone::aten
