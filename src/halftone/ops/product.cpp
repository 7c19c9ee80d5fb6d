#include "halftone/ops/product.h"

#include "halftone/base/error.h"
#include "halftone/ops/product_backends.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/panels.h"

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

double copy_bytes(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, Hardware hardware, CopyUse use, bool emulate) {
  if (!spec.quantized()) return 0;
  const CopyRequest r = is_cpu(hardware) ? cpu::product_request(spec, other, hp, use, emulate)
                                         : cuda::product_request(spec, other, hp, use, emulate, hardware);
  double bytes = (r.codes ? 1 : 0) + (r.packed ? 0.5 : 0);
  if (r.panels) bytes += panel_type(spec) == DType::s8 ? 1 : panel_type(spec) == DType::f32 ? 4 : 2;
  if (r.form != ValueForm::none) bytes += r.form == ValueForm::f32 ? 4 : r.form == ValueForm::bf16 ? 2 : 1;
  const bool bytes_of_scales = has_byte_scales(spec.scale), within = r.form != ValueForm::none && !r.codes && bytes_of_scales;
  if (spec.granularity == Granularity::block && !(within && !is_cpu(hardware))) bytes += (bytes_of_scales ? 1.0 : 4.0) / spec.block;
  return bytes;
}

double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, Hardware hardware, bool emulate) {
  return is_cpu(hardware) ? cpu::right_operand_bytes(spec, a, hp, emulate) : cuda::right_operand_bytes(spec, a, hp, emulate, hardware);
}

}  // namespace halftone
