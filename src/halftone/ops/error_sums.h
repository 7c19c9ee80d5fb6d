#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "halftone/formats/recipe.h"

// What quantisation did to a matrix, as sums that stay on its device: nothing here waits for the device. Meaning of each figure:
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

// A matrix [R, C], C the contraction, in codes.
struct CodedMatrix {
  OperandSpec spec;
  uint32_t signs = 0;  // of its rotation, see formats/hadamard.h
  at::Tensor codes;    // bytes
  at::Tensor numbers;  // fp32, every factor included
};

// Largest magnitude and non-finite elements of x[R, C].
ErrorSums plain_sums(const at::Tensor& x);

// `q` against x[R, <= C]; a rotated matrix is compared after rotating x in fp64, the columns it was filled up with as zeros.
ErrorSums coded_sums(const at::Tensor& x, const CodedMatrix& q);

// `found` against what reference(first, n) gives for n of its rows, on the CPU from several threads at once; amax and non-finite
// elements are those of `found`. padding: bool [rows], left out, or undefined.
ErrorSums product_sums(const at::Tensor& found, const std::function<at::Tensor(int64_t first, int64_t n)>& reference,
                       const at::Tensor& padding = {});

}  // namespace halftone
