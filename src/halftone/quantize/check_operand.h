#pragma once
#include "halftone/base/error.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone {

// Throws an Error on a description that no quantiser takes.
void check_operand(const QuantizeOperand& p);

}  // namespace halftone
