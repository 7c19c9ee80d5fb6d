#pragma once
#include "halftone/base/error.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone {

// Throws Error if no quantiser supports the description.
void check_operand(const QuantizeOperand& p);

}  // namespace halftone
