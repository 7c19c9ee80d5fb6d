#include "halftone/ops/product.h"

#include "halftone/base/error.h"
#include "halftone/ops/product_cpu.h"

namespace halftone {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  check(a.k == b.k && out.size(0) == a.rows && out.size(1) == b.rows, "product: operands of {} x {} and {} x {} for an output of {} x {}",
        a.rows, a.k, b.rows, b.k, out.size(0), out.size(1));
  check(out.is_cpu(), "product: this build multiplies quantised operands on the CPU");
  cpu::multiply(a, b, out, options);
}

CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType, bool kept, bool emulate) {
  return cpu::product_request(spec, other, hp, kept, emulate);
}

void prepare_right(Operand& b, const OperandSpec& a, at::ScalarType hp, bool emulate) { cpu::prepare_right(b, a, hp, emulate); }

}  // namespace halftone
