#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "halftone/ops/operand.h"
#include "halftone/torch_ops/format.h"

namespace halftone::library {

// Keys of an operation's draws: `stream` is name#role (numerics.md section 4); the name also keys the rotation's signs.
struct Draws {
  std::string stream;
  int64_t seed = 0, step = 0, first_row = 0;
};

// Error unless x, whose sizes may be symbolic, can be quantised in this direction: a matrix; for packing, with an even length.
void check_matrix(const at::Tensor& x, const Format& format, bool transposed);
// x[rows, cols] quantised row-wise or transposed, codes in the form that the format names.
Operand quantize(const at::Tensor& x, const Format& format, bool transposed, const Draws& draws);

// {codes, scales, outer, macro, zeros} with empty tensors for those that the format lacks, and back: every shape, dtype and device is
// checked, because GEMMs read them by pointer. An operand in format hp is the matrix alone.
std::vector<at::Tensor> tensors(const Operand& operand, const Format& format);
Operand operand(const char* what, at::TensorList tensors, const Format& format);

}  // namespace halftone::library
