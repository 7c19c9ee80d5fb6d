#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/gemm/decode.h"
#include "halftone/gemm/grouped_product.h"
#include "halftone/gemm/product_operand.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/expert_products.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product_backends.h"
#include "halftone/ops/product_choices.h"
#include "halftone/ops/range.h"

namespace halftone::cuda {
namespace {

// The operand in the form that the GEMM reads.
Operand readable(const Operand& x, const UnitInput& units) {
  const bool emulate = units.path == Path::dequantized;
  Operand y = x;
  if (!x.spec.quantized()) {
    y.values = row_major(x.values.to(scalar_type(units.type)));
    return y;
  }
  if (units.path == Path::folded) {
    check(x.form == ValueForm::fold_e4m3, "product: an mxfp4 operand was not quantised as folded codes");
    return x;
  }
  if (units.codes()) {
    if (!x.codes.defined()) y.codes = decode(x, gemm::Decode::values, at::kChar);  // packed int4
    return y;
  }
  const ValueForm wanted = units.type == DType::f32 ? ValueForm::f32 : ValueForm::bf16;
  if (!emulate && x.form == wanted) return x;
  y.values = decode(x, emulate ? gemm::Decode::everything : gemm::Decode::values, scalar_type(units.type));
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
DType numbers_type(const Operand& a, const Operand& b) {
  for (const Operand* x : {&a, &b}) {
    if (x->values.defined() && x->values.scalar_type() == at::kFloat) return DType::f32;
  }
  return DType::bf16;
}

void run(gemm::GroupedProduct& p, const at::Tensor& out, const Operand& a, const Operand& b) {
  const Module& m = required_module();
  p.workspace_bytes = m.grouped_product_workspace(&p);
  const Owner owner("workspace of a product");
  const at::Tensor workspace = at::empty({std::max<int64_t>(p.workspace_bytes, 1)}, out.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  const char* error = m.grouped_product(&p, current_stream(out.device()));
  check(error == nullptr, "product of groups, {} by {}: {}", a, b, error ? error : "");
}

// The operand with zeros below its rows.
Operand with_rows(Operand x, int64_t rows) {
  for (at::Tensor* t : tensors_of_rows(x)) {
    std::vector<int64_t> padding(static_cast<size_t>(2 * t->dim()));
    padding.back() = rows - t->size(0);
    if (padding.back() > 0) *t = at::constant_pad_nd(*t, padding);
  }
  x.rows = rows;
  return x;
}

// The product as the only group of a grouped GEMM, whose tiling depends on n and k alone and which splits no sum. The bias is added to the
// rounded sum.
void multiply_one_group(const Operand& a_in, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  const int64_t m = a_in.rows, rows = round_up(m, kGroupRows);
  const Operand a = with_rows(a_in, rows);
  const bool direct = rows == m && out.is_contiguous();
  const at::Tensor whole = direct ? out : at::empty({rows, out.size(1)}, out.options());
  const at::Tensor offsets = at::arange(2, out.options().dtype(at::kInt)).mul_(rows), ends = at::full({1}, m, offsets.options());
  gemm::GroupedProduct p;
  p.groups = {1, offsets.const_data_ptr<int32_t>(), ends.const_data_ptr<int32_t>()}, p.rows = rows;
  static_cast<gemm::ProductOperand&>(p.a) = operand(a), static_cast<gemm::ProductOperand&>(p.b) = operand(b);
  p.n = out.size(1), p.k = std::min(a.k, b.k);
  if (p.a.ld == 0) p.a.ld = a.k;
  if (p.b.ld == 0) p.b.ld = b.k;
  p.d = whole.data_ptr(), p.d_type = kernel_dtype(out), p.fast_accumulation = options.fast_accum;
  for (const Operand* x : {&a, &b}) {
    if (x->spec.clip == Clip::fixed) p.alpha *= 4.0f / 3.0f;  // numerics.md 3.3
  }
  run(p, out, a, b);
  if (!direct) out.copy_(whole.narrow(0, 0, m));
  if (options.bias.defined()) out.add_(options.bias);
}

}  // namespace

void multiply(const Operand& a_in, const Operand& b_in, const at::Tensor& out, const ProductOptions& options) {
  const Hardware device = process_hardware(at::kCUDA);
  const UnitInput units = unit_input(a_in.spec, b_in.spec, numbers_type(a_in, b_in), options.emulate, device);
  const Operand a = readable(a_in, units), b = readable(b_in, units);
  if (options.invariant && units.path != Path::int8) return multiply_one_group(a, b, out, options);
  gemm::Product p;
  p.m = a.rows, p.n = b.rows, p.k = std::min(a.k, b.k);
  p.a = operand(a), p.b = operand(b);
  // Rows of a quantised copy may be longer than those of its unquantised partner, by zeros.
  if (p.a.ld == 0) p.a.ld = a.k;
  if (p.b.ld == 0) p.b.ld = b.k;
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
  p.measure = !at::globalContext().deterministicAlgorithms() && !out.is_meta();
  const Module& m = required_module();
  p.workspace_bytes = m.product_workspace(&p);
  const Owner owner("workspace of a product");
  const at::Tensor workspace = at::empty({std::max<int64_t>(p.workspace_bytes, 1)}, out.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  ProductChoices* choices = p.measure ? &ProductChoices::of(out.device()) : nullptr;
  const Stopwatch watch;
  const char* error = m.product(&p, current_stream(out.device()));
  if (choices != nullptr && choices->keep_new()) log_debug("product of {} by {}: chosen in {:.0f} ms", a, b, watch.seconds() * 1e3);
  check(error == nullptr, "product of {} by {}: {}", a, b, error ? error : "");
}

void multiply_groups(const Operand& a_in, const Operand& b_in, const at::Tensor& out, bool contracts_rows, const ExpertRows& rows,
                     const ProductOptions& options) {
  // The codes of a copy do not depend on its group: scales stay outside.
  const auto form_read = [](Operand x, const UnitInput& units) {
    const int64_t groups = std::exchange(x.groups, 0);
    Operand y = readable(x, units);
    y.groups = groups;
    return y;
  };
  // Tensor cores sum the rows of a group in blocks, so the result depends on where a document's rows lie; in fp32 they are summed one by
  // one.
  const bool one_by_one = contracts_rows && rows.documents.defined() && !a_in.spec.quantized() && !b_in.spec.quantized();
  const DType numbers = one_by_one ? DType::f32 : numbers_type(a_in, b_in);
  UnitInput units = unit_input(a_in.spec, b_in.spec, numbers, options.emulate, process_hardware(at::kCUDA));
  // Group ends, and hence each value's scales, are known only on the device: codes become fp32, and the GEMM applies the scales.
  if (units.path == Path::dequantized) units.path = Path::values;
  const Operand a = form_read(a_in, units), b = form_read(b_in, units);
  gemm::GroupedProduct p;
  p.ragged = contracts_rows ? gemm::Ragged::contraction : gemm::Ragged::rows, p.groups = rows.groups(), p.rows = rows.rows;
  static_cast<gemm::ProductOperand&>(p.a) = operand(a), static_cast<gemm::ProductOperand&>(p.b) = operand(b);
  if (!contracts_rows) {
    p.n = out.size(1), p.k = a.k, p.b.stride = b_in.group_stride;
    if (b_in.group_ld > 0) p.b.ld = b_in.group_ld;
    if (b.spec.block == 128 && b.scales.defined()) p.b.scale_stride = b.scales.numel() / rows.experts;
  } else {
    p.m = out.size(1), p.n = out.size(2);
    // A wide rotation spreads a group's last rows over its padding, which then counts.
    if (std::max(a_in.spec.hadamard, b_in.spec.hadamard) > gemm::kContractionStep) p.groups.ends = p.groups.offsets + 1;
  }
  p.d = out.data_ptr(), p.d_type = kernel_dtype(out);
  p.accumulate = options.accumulate && !options.overwrite, p.fast_accumulation = options.fast_accum;
  for (const Operand* x : {&a, &b}) {
    if (x->spec.clip == Clip::fixed) p.alpha *= 4.0f / 3.0f;  // numerics.md 3.3
  }
  run(p, out, a, b);
}

Operand right_operand(const std::vector<Operand>& siblings, const UnitInput& units) {
  check(siblings.size() == 1, "product: {} does not join others side by side on a device", siblings.front());
  Operand b = readable(siblings.front(), units);
  if (b.values.defined()) b.codes.reset(), b.packed.reset();
  return b;
}

}  // namespace halftone::cuda
