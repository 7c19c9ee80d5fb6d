#pragma once
#include <memory>

#include "halftone/ops/linear.h"

// The products of `linear` on our CPU kernels: operands quantised from one read, weights packed once per version.
namespace halftone::cpu {

struct SavedInput;  // what backward needs of X: X itself, or its codes with one scale per column

struct LinearCall {
  at::Tensor y;
  std::shared_ptr<SavedInput> saved;
};
// `out`: dtype of y, X's own or float32.
LinearCall linear_forward(const at::Tensor& x_tk, LinearGroup& group, bool keep, at::ScalarType out);
at::Tensor linear_backward(const SavedInput& saved, const at::Tensor& dy_tn, LinearGroup& group, bool want_dx);

}  // namespace halftone::cpu
