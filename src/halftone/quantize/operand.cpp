#include "halftone/quantize/operand.h"

#include "halftone/quantize/operand_ref.h"

namespace halftone {

void quantize_operand(const QuantizeOperand& p) { quantize_operand(p, best_isa()); }

void quantize_operand(const QuantizeOperand& p, Isa) { ref::quantize_operand(p); }

}  // namespace halftone
