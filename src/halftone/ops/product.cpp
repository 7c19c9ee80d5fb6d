#include "halftone/ops/product.h"

#include <cstdlib>

#include "halftone/base/error.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product_backends.h"

namespace halftone {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  const bool of_cpu = is_cpu(process_hardware(out.device().type()));
  // A GPU's quantised copies are padded with zeros along k, beside an unquantised partner too.
  const int64_t padding = of_cpu || (a.spec.quantized() && b.spec.quantized()) ? 0 : 127;
  check(std::abs(a.k - b.k) <= padding && out.size(0) == a.rows && out.size(1) == b.rows,
        "product of {} by {}: expected an output of {} x {}, found {} x {}", a, b, a.rows, b.rows, out.size(0), out.size(1));
  if (of_cpu && out.is_meta()) return;  // a dry run
  of_cpu ? cpu::multiply(a, b, out, options) : cuda::multiply(a, b, out, options);
}

Operand right_operand(std::vector<Operand> siblings, const UnitInput& units) {
  const Operand& b = siblings.front();
  const at::Tensor& any = b.values.defined() ? b.values : b.scales;
  if (b.panels.defined() || !any.defined()) return b;
  return is_cpu(process_hardware(any.device().type())) ? cpu::right_operand(siblings, units) : cuda::right_operand(siblings, units);
}

}  // namespace halftone
