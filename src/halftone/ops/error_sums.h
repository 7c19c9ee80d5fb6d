#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "halftone/formats/hadamard.h"
#include "halftone/formats/recipe.h"

// Quantisation error of a matrix, as sums that stay on its device: nothing here synchronizes with the device. Each figure is defined in
// docs/numerics_report.md.
namespace halftone {

struct ErrorSums {
  enum Index { kSignal, kNoise, kSaturated, kFlushed, kNonFinite, kPadding, kAmax, kCount };
  at::Tensor values;        // fp64 [kCount]; kAmax is a maximum
  int64_t elements = 0;     // counted in them; kPadding of these stand for no token
  bool has_noise = false;   // kSignal and kNoise: sums of squares of the original and of its error
  bool has_shares = false;  // kSaturated and kFlushed

  void add(const ErrorSums& other);
};

// A quantised matrix [R, C], C the contraction dimension.
struct CodedMatrix {
  OperandSpec spec;
  RotationSigns signs{};  // of its rotation
  at::Tensor codes;       // bytes
  at::Tensor numbers;     // fp32, all scales applied
};

// amax and count of non-finite elements of x[R, C].
ErrorSums plain_sums(const at::Tensor& x);

// `q` against x[R, <= C]; if q is rotated, x is rotated in fp64 first, with its padding columns as zeros.
ErrorSums coded_sums(const at::Tensor& x, const CodedMatrix& q);

// `found` against what reference(first, n) gives for n of its rows, on the CPU from several threads at once; amax and non-finite
// elements are those of `found`. padding: bool [rows], left out, or undefined.
ErrorSums product_sums(const at::Tensor& found, const std::function<at::Tensor(int64_t first, int64_t n)>& reference,
                       const at::Tensor& padding = {});

}  // namespace halftone
