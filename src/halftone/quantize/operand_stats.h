#pragma once
#include <vector>

#include "halftone/quantize/two_pass.h"

// Internal: whole-matrix statistics that quantize_operand needs before encoding.
namespace halftone::quantize {

struct MatrixStats {
  std::vector<uint32_t> row_amax, column_amax;
  uint32_t amax = 0;
};
MatrixStats matrix_amax(const Source& s, const Kernels& k, bool columns);

// Integer maxima of bits32(|x|) over the elements without and with the sign bit (int4_scale).
struct SignedStats {
  std::vector<uint32_t> row_pos, row_neg, column_pos, column_neg;
  uint32_t pos = 0, neg = 0;
};
SignedStats signed_amax(const Source& s);

// Sum of |x| in the order of formats/pairwise_sum.h over the row-major elements.
double absolute_sum(const Source& s);

}  // namespace halftone::quantize
