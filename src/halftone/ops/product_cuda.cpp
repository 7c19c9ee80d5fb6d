#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/formats/support.h"
#include "halftone/gemm/decode.h"
#include "halftone/gemm/product_operand.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/grouped_prepared.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product_backends.h"
#include "halftone/ops/product_choices.h"

namespace halftone::cuda {
namespace {

// 8-bit tensor cores read full vectors of 16 along the contraction.
constexpr int64_t kContractionMultiple = 16;

// The format that the tensor cores read (formats/support.h), and the dtype of values in it.
struct Form {
  Path path;
  at::ScalarType type;
  bool codes() const { return path == Path::int8 || path == Path::fp8; }
};

// All devices of a process are of one model.
Hardware this_device() {
  static const Hardware hardware = hardware_of({c10::DeviceType::CUDA, 0});
  return hardware;
}

// Follows formats/support.h, so that the kernels match what a run prints at its start.
Form form_of(const OperandSpec& a, const OperandSpec& b, at::ScalarType hp, bool emulate, Hardware hardware) {
  if (emulate) return {Path::dequantized, at::kFloat};
  if (!a.quantized() || !b.quantized()) {
    // Sums over blocks of 128 are scaled only in GEMMs of codes on both sides.
    const bool blocks = (a.quantized() && gemm::scaled_by_block(a)) || (b.quantized() && gemm::scaled_by_block(b));
    return blocks ? Form{Path::dequantized, at::kFloat} : Form{Path::values, hp};
  }
  const Path path = product_support(a, b, hardware).path;
  return {path, path == Path::dequantized ? at::kFloat : at::kBFloat16};
}

// The operand in the form that the GEMM reads.
Operand readable(const Operand& x, const Form& form) {
  const bool emulate = form.path == Path::dequantized;
  Operand y = x;
  if (!x.spec.quantized()) {
    y.values = row_major(x.values.to(form.type));
    return y;
  }
  if (form.path == Path::folded) {
    check(x.form == ValueForm::fold_e4m3, "product: an mxfp4 operand was not quantised as folded codes");
    return x;
  }
  if (form.codes()) {
    if (!x.codes.defined()) y.codes = decode(x, gemm::Decode::values, at::kChar);  // packed int4
    return y;
  }
  const ValueForm wanted = form.type == at::kFloat ? ValueForm::f32 : ValueForm::bf16;
  if (!emulate && x.form == wanted) return x;
  y.values = decode(x, emulate ? gemm::Decode::everything : gemm::Decode::values, form.type);
  if (emulate || x.spec.element == Element::uint4) return plain_operand(y.values, false);  // all scales are already applied
  y.form = wanted;
  return y;
}

gemm::ProductOperand operand(const Operand& x) {
  if (x.spec.quantized()) return gemm::product_operand(view(x));
  gemm::ProductOperand p;
  p.numbers = x.values.scalar_type() == at::kFloat ? gemm::Numbers::f32 : gemm::Numbers::bf16;
  p.transposed = x.values_transposed;
  p.data = x.values.const_data_ptr(), p.ld = row_stride(x.values);
  return p;
}

// dtype of unquantised values: float32 if an unquantised operand, or the requested form, is float32.
at::ScalarType numbers_type(const Operand& a, const Operand& b) {
  for (const Operand* x : {&a, &b}) {
    if (x->values.defined() && x->values.scalar_type() == at::kFloat) return at::kFloat;
  }
  return at::kBFloat16;
}

}  // namespace

void multiply(const Operand& a_in, const Operand& b_in, const at::Tensor& out, const ProductOptions& options) {
  const Form form = form_of(a_in.spec, b_in.spec, numbers_type(a_in, b_in), options.emulate, this_device());
  const Operand a = readable(a_in, form), b = readable(b_in, form);
  gemm::Product p;
  p.m = a.rows, p.n = b.rows, p.k = a.k;
  p.a = operand(a), p.b = operand(b);
  p.d = out.data_ptr(), p.d_type = kernel_dtype(out), p.ldd = row_stride(out);
  p.fast_accumulation = options.fast_accum;
  // Our kernels for fp32 sums of s8, and of e5m2 on both sides, always accumulate.
  const bool ours = p.a.numbers == gemm::Numbers::s8 || (p.a.numbers == gemm::Numbers::e5m2 && p.b.numbers == gemm::Numbers::e5m2);
  if (options.overwrite && ours) out.zero_();
  p.accumulate = options.accumulate && (ours || !options.overwrite);
  for (const Operand* x : {&a, &b}) {
    if (x->spec.clip == Clip::fixed) p.alpha *= 4.0f / 3.0f;  // numerics.md 3.3
  }
  if (options.bias.defined()) p.bias = options.bias.const_data_ptr(), p.bias_type = DType::f32;
  // A timed choice of algorithm may change the last bits of sums from run to run.
  p.measure = !at::globalContext().deterministicAlgorithms();
  const Module& m = required_module();
  p.workspace_bytes = m.product_workspace(&p);
  const at::Tensor workspace = at::empty({std::max<int64_t>(p.workspace_bytes, 1)}, out.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  ProductChoices* choices = p.measure ? &ProductChoices::of(out.device()) : nullptr;
  const Stopwatch watch;
  const char* error = m.product(&p, current_stream(out.device()));
  if (choices != nullptr && choices->keep_new()) log_debug("product of {} by {}: chosen in {:.0f} ms", a, b, watch.seconds() * 1e3);
  check(error == nullptr, "product of {} by {}: {}", a, b, error ? error : "");
}

void multiply_groups(const Operand& a_in, const GroupedWeight& b_in, const at::Tensor& out, gemm::Ragged ragged, const ExpertRows& rows,
                     const ProductOptions& options) {
  // The codes of a copy do not depend on its group: scales stay outside.
  const auto form_read = [](Operand x, const Form& form) {
    const int64_t groups = std::exchange(x.groups, 0);
    Operand y = readable(x, form);
    y.groups = groups;
    return y;
  };
  // Tensor cores sum the rows of a group in blocks, so the result depends on where a document's rows lie; in fp32 they are summed one by
  // one.
  const bool one_by_one =
      ragged == gemm::Ragged::contraction && rows.documents.defined() && !a_in.spec.quantized() && !b_in.operand.spec.quantized();
  const at::ScalarType hp = one_by_one ? at::kFloat : numbers_type(a_in, b_in.operand);
  Form form = form_of(a_in.spec, b_in.operand.spec, hp, options.emulate, this_device());
  // Group ends, and hence each value's scales, are known only on the device: codes become fp32, and the GEMM applies the scales.
  if (form.path == Path::dequantized) form.path = Path::values;
  const Operand a = form_read(a_in, form), b = form_read(b_in.operand, form);
  gemm::GroupedProduct p;
  p.ragged = ragged, p.groups = rows.groups(), p.rows = rows.rows;
  static_cast<gemm::ProductOperand&>(p.a) = operand(a), static_cast<gemm::ProductOperand&>(p.b) = operand(b);
  if (ragged == gemm::Ragged::rows) {
    p.n = out.size(1), p.k = a.k, p.b.stride = b_in.stride;
    if (b_in.ld > 0) p.b.ld = b_in.ld;
    if (b.spec.block == 128 && b.scales.defined()) p.b.scale_stride = b.scales.numel() / rows.experts;
  } else {
    p.m = out.size(1), p.n = out.size(2);
  }
  p.d = out.data_ptr(), p.d_type = kernel_dtype(out);
  p.accumulate = options.accumulate, p.fast_accumulation = options.fast_accum;
  for (const Operand* x : {&a, &b}) {
    if (x->spec.clip == Clip::fixed) p.alpha *= 4.0f / 3.0f;  // numerics.md 3.3
  }
  const Module& m = required_module();
  p.workspace_bytes = m.grouped_product_workspace(&p);
  const at::Tensor workspace = at::empty({std::max<int64_t>(p.workspace_bytes, 1)}, out.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  const char* error = m.grouped_product(&p, current_stream(out.device()));
  check(error == nullptr, "product of groups, {} by {}: {}", a, b, error ? error : "");
}

CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, bool emulate) {
  return product_request(spec, other, hp, use, emulate, this_device());
}

CopyRequest product_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, bool emulate,
                            Hardware hardware) {
  const bool kept = use == CopyUse::kept;
  CopyRequest r;
  r.spec = spec, r.multiple = kContractionMultiple;
  const Form form = form_of(spec, other, hp, emulate, hardware);
  if (form.path == Path::folded) {
    r.form = ValueForm::fold_e4m3;
  } else if (kept && (spec.element == Element::e2m1 || spec.element == Element::int4)) {
    r.packed = true;
  } else if (kept || form.path == Path::dequantized || form.codes() || is_integer(spec)) {
    r.codes = true;  // integers times unquantised values: quantisers write codes at full speed, decoding costs one more pass
  } else {
    r.form = form.type == at::kFloat ? ValueForm::f32 : ValueForm::bf16;
  }
  return r;
}

Operand right_operand(std::vector<Operand> siblings, const OperandSpec& a, at::ScalarType hp, bool emulate) {
  check(siblings.size() == 1, "product: {} does not join others side by side on a device", siblings.front());
  Operand b = readable(siblings.front(), form_of(a, siblings.front().spec, hp, emulate, this_device()));
  if (b.values.defined()) b.codes.reset(), b.packed.reset();
  return b;
}

double right_operand_bytes(const OperandSpec& spec, const OperandSpec& a, at::ScalarType hp, bool emulate, Hardware hardware) {
  const Form form = form_of(a, spec, hp, emulate, hardware);
  if (!spec.quantized()) return form.type == hp ? 0 : static_cast<double>(c10::elementSize(form.type));
  return form.codes() || form.path == Path::folded ? 1 : static_cast<double>(c10::elementSize(form.type));
}

}  // namespace halftone::cuda
