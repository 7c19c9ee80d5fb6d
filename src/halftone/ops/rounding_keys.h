#pragma once
#include <string>

#include "halftone/base/philox.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/recipe.h"
#include "halftone/ops/weight.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// Random draws of an operand: stream "<weight>#<role>", indexed by the element's row in the step's batch (numerics.md section 4).
inline Rounding operand_rounding(const OperandSpec& spec, const std::string& weight, const char* role, const StepContext& context,
                                 int64_t first_row) {
  Rounding r;
  r.stochastic = spec.stochastic, r.step = context.step, r.first_row = first_row;
  if (spec.stochastic) r.key = philox_key(context.seed, weight + "#" + role);
  return r;
}

// Whether the signs of a rotation are redrawn every step; the 16-token rotation has fixed signs.
inline bool rotates_by_step(const OperandSpec& spec) { return spec.hadamard == 32; }
inline PhiloxKey rotation_key(const std::string& first_weight, const StepContext& context) {
  return philox_key(context.seed, first_weight + "#rht");
}

// Signs of a rotation (numerics.md section 5), shared by the operands of a product and by all weights of a group.
inline uint32_t rotation_signs(const OperandSpec& spec, const std::string& first_weight, const StepContext& context) {
  if (spec.hadamard == 0) return 0;
  return rotates_by_step(spec) ? philox(rotation_key(first_weight, context), 0, context.step, 0)[0] : kFixedSigns16;
}

}  // namespace halftone
