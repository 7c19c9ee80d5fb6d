#include "halftone/ops/product.h"

#include "halftone/base/error.h"
#include "halftone/ops/product_backends.h"

namespace halftone {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  check(a.k == b.k && out.size(0) == a.rows && out.size(1) == b.rows, "product of {} by {}: expected an output of {} x {}, found {} x {}",
        a, b, a.rows, b.rows, out.size(0), out.size(1));
  out.is_cpu() ? cpu::multiply(a, b, out, options) : cuda::multiply(a, b, out, options);
}

CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType device, CopyUse use,
                            bool emulate) {
  if (!spec.quantized()) return {};
  return device == at::kCPU ? cpu::product_request(spec, other, hp, use, emulate) : cuda::product_request(spec, other, hp, use, emulate);
}

Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate) {
  const Operand& b = siblings.front();
  const at::Tensor& any = b.values.defined() ? b.values : b.scales;
  if (b.panels.defined() || !any.defined()) return b;
  return any.is_cpu() ? cpu::right_operand(std::move(siblings), a, hp, emulate) : cuda::right_operand(std::move(siblings), a, hp, emulate);
}

}  // namespace halftone
