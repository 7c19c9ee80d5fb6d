#pragma once
#include <string>

#include "halftone/base/philox.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/recipe.h"
#include "halftone/ops/weight.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// Whether an operand takes random draws.
inline bool takes_draws(const OperandSpec& spec) { return spec.stochastic || spec.eden; }

// Random draws of an operand: stream "<weight>#<role>", that of MS-EDEN's scales "<weight>#<role>.scale", indexed by the element's row in
// the step's batch (numerics.md section 4).
inline Rounding operand_rounding(const OperandSpec& spec, const std::string& weight, const char* role, const StepContext& context,
                                 int64_t first_row) {
  Rounding r;
  r.stochastic = spec.stochastic, r.step = context.step, r.first_row = first_row;
  if (takes_draws(spec)) r.key = philox_key(context.seed, weight + "#" + role + (spec.eden ? ".scale" : ""));
  return r;
}

// Whether the signs of a rotation are redrawn every step.
inline bool rotates_by_step(const OperandSpec& spec) { return spec.hadamard != 0 && spec.signs == Signs::random; }
// Whether an operand depends on the step beside its matrix.
inline bool changes_by_step(const OperandSpec& spec) { return takes_draws(spec) || rotates_by_step(spec); }
// role: "rht" in wgrad, "rht.dgrad" in dgrad.
inline PhiloxKey rotation_key(const std::string& first_weight, const char* role, const StepContext& context) {
  return philox_key(context.seed, first_weight + "#" + role);
}

// Signs of a rotation (numerics.md section 5), shared by the operands of a product and by all weights of a group.
inline RotationSigns rotation_signs(const OperandSpec& spec, const std::string& first_weight, const char* role,
                                    const StepContext& context) {
  if (rotates_by_step(spec)) return RotationSigns(philox(rotation_key(first_weight, role, context), 0, context.step, 0));
  return spec.hadamard != 0 && spec.signs == Signs::torchao ? kFixedSigns16 : RotationSigns{};
}

}  // namespace halftone
