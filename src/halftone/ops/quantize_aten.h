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
// the draw of element (r, c) has counter index (first_row + r) * C + c in the stream `key` (section 4); `transposed` says
// that x is a transposed view, whose logical element is (c, r).
Quantized quantize_rows(const at::Tensor& x, const OperandSpec& spec, const std::string& key = {}, bool transposed = false);

}  // namespace halftone::aten
