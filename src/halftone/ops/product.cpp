#include "halftone/ops/product.h"

#include "halftone/base/error.h"
#include "halftone/ops/product_cpu.h"
#include "halftone/ops/product_cuda.h"

namespace halftone {

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  check(a.k == b.k && out.size(0) == a.rows && out.size(1) == b.rows, "product: operands of {} x {} and {} x {} for an output of {} x {}",
        a.rows, a.k, b.rows, b.k, out.size(0), out.size(1));
  out.is_cpu() ? cpu::multiply(a, b, out, options) : cuda::multiply(a, b, out, options);
}

CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, c10::DeviceType device, bool kept,
                            bool emulate) {
  return device == at::kCPU ? cpu::product_request(spec, other, hp, kept, emulate) : cuda::product_request(spec, other, hp, kept, emulate);
}

void prepare_right(Operand& b, const OperandSpec& a, at::ScalarType hp, bool emulate) {
  const at::Tensor& any = b.values.defined() ? b.values : b.scales;
  if (!any.defined()) return;
  any.is_cpu() ? cpu::prepare_right(b, a, hp, emulate) : cuda::prepare_right(b, a, hp, emulate);
}

}  // namespace halftone
