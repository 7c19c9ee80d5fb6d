#include "halftone/ops/operand.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/formats/describe.h"
#include "halftone/gemm/decode.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/quantize/check_operand.h"
#include "halftone/quantize/panels.h"

namespace halftone {
namespace {

at::ScalarType scale_type(ScaleFormat f) {
  return f == ScaleFormat::e8m0 || f == ScaleFormat::e4m3 || f == ScaleFormat::ue5m3 ? at::kByte : at::kFloat;
}

std::vector<int64_t> scale_shape(const OperandSpec& s, int64_t rows, int64_t k) {
  switch (s.granularity) {
    case Granularity::row:
      return {rows};
    case Granularity::block:
      return {rows, ceil_div(k, s.block)};
    case Granularity::tile:
      return {ceil_div(rows, s.block), ceil_div(k, s.block)};
    default:
      return {1};
  }
}

at::ScalarType value_type(ValueForm f) { return f == ValueForm::f32 ? at::kFloat : f == ValueForm::bf16 ? at::kBFloat16 : at::kByte; }

template <class T>
T* pointer(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr;
}

// Allocates every output that the request asks for, for a matrix with `contracted` columns in the copy's direction.
QuantizedCopy prepare(Operand& o, const CopyRequest& r, int64_t rows, int64_t contracted, c10::Device device, bool transposed,
                      int64_t groups) {
  const auto make = [&](at::IntArrayRef shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions().device(device).dtype(type));
  };
  QuantizedCopy c;
  c.spec = r.spec, c.length = round_up(contracted, r.packed ? std::lcm(r.multiple, int64_t{2}) : r.multiple);
  const int64_t k = operand_length(c, contracted);
  o.spec = r.spec, o.rows = rows, o.k = k, o.form = r.form, o.groups = groups;
  if (r.codes) o.codes = make({rows, k}, at::kByte);
  if (r.panels) o.panel_type = panel_type(r.spec), o.panels = make({panels_bytes(o.panel_type, k, rows)}, at::kByte);
  if (r.packed) o.packed = make({rows, k / 2}, at::kByte);
  std::vector<int64_t> shape = scale_shape(r.spec, rows, k), fold_shape = {r.form == ValueForm::fold_e4m3 ? rows : 1};
  const int64_t sets = std::max<int64_t>(groups, 1);
  if (r.spec.granularity == Granularity::tensor) shape = {sets};
  if (r.form == ValueForm::fold_e5m2) fold_shape = {sets};
  if (groups > 0 && transposed && r.spec.granularity == Granularity::row) shape = {groups, rows};
  if (groups > 0 && transposed && r.form == ValueForm::fold_e4m3) fold_shape = {groups, rows};
  // Values include block scales. Without codes the scales are rarely read, and writing them costs a GPU quantiser up to a tenth of its
  // time.
  const bool within = r.form != ValueForm::none && !r.codes && !r.packed && has_byte_scales(r.spec.scale);
  if (!within || r.block_scales || device.is_cpu()) o.scales = make(shape, scale_type(r.spec.scale));
  if (r.spec.element == Element::uint4) o.zeros = make(shape, at::kFloat);
  if (r.spec.two_level == TwoLevel::tensor) o.outer = make({sets}, at::kFloat);
  if (r.spec.two_level == TwoLevel::macro) {
    o.macro = make({r.spec.granularity == Granularity::tile ? ceil_div(rows, 128) : rows, ceil_div(k, 128)}, at::kByte);
  }
  if (r.form != ValueForm::none) o.values = make({rows, k}, value_type(r.form));
  if (is_fold(r.form)) o.fold_scale = make(fold_shape, at::kFloat);
  c = view(o);
  c.rounding = r.rounding, c.signs = r.signs, c.signs_step = r.signs_step, c.signs_key = r.signs_key;
  c.length = k > contracted ? k : 0;
  return c;
}

}  // namespace

QuantizedCopy view(const Operand& o) {
  QuantizedCopy c;
  c.spec = o.spec, c.form = o.form;
  c.codes = pointer<uint8_t>(o.codes), c.packed = pointer<uint8_t>(o.packed);
  c.scales = pointer<void>(o.scales), c.zeros = pointer<float>(o.zeros), c.outer = pointer<float>(o.outer);
  c.macro = pointer<uint8_t>(o.macro), c.values = pointer<void>(o.values), c.fold_scale = pointer<float>(o.fold_scale);
  c.panels = pointer<void>(o.panels);
  return c;
}

AmaxUse& amax_use() {
  static AmaxUse use;
  return use;
}

OperandCopies quantize(const at::Tensor& x_in, const CopyRequest* row, const CopyRequest* transposed, const at::Tensor& amax, bool as_bf16,
                       at::Tensor* found, const GroupedRows* groups) {
  check(x_in.dim() == 2, "quantize: expected a matrix, found {} dimensions", x_in.dim());
  at::Tensor x = row_major(x_in);
  const auto rotates = [](const CopyRequest* r) { return r != nullptr && r->spec.hadamard != 0; };
  if (as_bf16 && (x.is_cpu() || rotates(row) || rotates(transposed))) x = x.to(at::kBFloat16), as_bf16 = false;
  OperandCopies copies;
  const bool elsewhere = groups != nullptr && groups->from.source != nullptr;
  check(!elsewhere || ((row == nullptr || row->spec.quantized()) && (transposed == nullptr || transposed->spec.quantized())),
        "quantize: expected copies of rows that lie elsewhere to be quantised, found one that is not");
  if (row != nullptr && !row->spec.quantized()) copies.row = plain_operand(x, false), row = nullptr;
  if (transposed != nullptr && !transposed->spec.quantized()) copies.transposed = plain_operand(x, true), transposed = nullptr;
  if (row == nullptr && transposed == nullptr) return copies;
  QuantizeOperand q;
  q.x = x.const_data_ptr(), q.type = kernel_dtype(x), q.rows = x.size(0), q.cols = x.size(1), q.ld = row_stride(x);
  q.as_bf16 = as_bf16;
  if (groups != nullptr && groups->groups.groups > 0) {
    check(x.is_cuda(), "quantize: expected the matrix of {} groups of rows on a CUDA device, found it on {}", groups->groups.groups,
          x.device().str());
    q.groups = groups->groups, q.from = groups->from, q.group_rows = groups->each, found = nullptr;
    if (q.from.source != nullptr) q.rows = groups->rows;
  } else if (amax.defined()) {
    check(amax.scalar_type() == at::kInt && amax.numel() == 1 && amax.device() == x.device(),
          "quantize: expected the amax as one int32 on {}, found {} of {} on {}", x.device().str(), amax.numel(),
          c10::toString(amax.scalar_type()), amax.device().str());
    q.amax = static_cast<const uint32_t*>(amax.const_data_ptr());
    ++amax_use().taken;
  }
  if (row != nullptr) {
    q.want_row = true, q.row = prepare(copies.row, *row, q.rows, q.cols, x.device(), false, q.groups.groups);
  }
  if (transposed != nullptr) {
    q.want_transposed = true, q.transposed = prepare(copies.transposed, *transposed, q.cols, q.rows, x.device(), true, q.groups.groups);
  }
  if (x.is_cpu()) {
    quantize_operand(q);
    return copies;
  }
  if (found != nullptr && found->defined()) {
    q.amax = static_cast<const uint32_t*>(found->const_data_ptr()), q.amax_parts = kAmaxParts;
  } else if (found != nullptr && ((q.want_row && uses_tensor_amax(q.row)) || (q.want_transposed && uses_tensor_amax(q.transposed)))) {
    *found = at::empty({kAmaxParts}, x.options().dtype(at::kInt));
    q.found_amax = static_cast<uint32_t*>(found->mutable_data_ptr());
  }
  check_operand(q);
  const cuda::Module* m = cuda::module();
  check(m != nullptr, "quantize: {}", cuda::missing_module());
  const size_t bytes = m->quantize_workspace(&q);
  const at::Tensor workspace = at::empty({static_cast<int64_t>(std::max<size_t>(bytes, 1))}, x.options().dtype(at::kByte));
  const char* error = m->quantize_operand(&q, workspace.data_ptr(), bytes, cuda::current_stream(x.device()));
  check(error == nullptr, "quantize of [{} x {}] to {}: {}", q.rows, q.cols, row != nullptr ? copies.row : copies.transposed,
        error ? error : "");
  return copies;
}

Operand plain_operand(const at::Tensor& x, bool transposed) {
  Operand o;
  o.values = x, o.values_transposed = transposed;
  o.rows = x.size(transposed ? 1 : 0), o.k = x.size(transposed ? 0 : 1);
  return o;
}

std::vector<at::Tensor*> tensors_of_rows(Operand& o) {
  std::vector<at::Tensor*> tensors = {&o.codes, &o.packed, &o.macro, &o.values};
  if (o.spec.granularity != Granularity::tensor) tensors.push_back(&o.scales), tensors.push_back(&o.zeros);
  if (o.form == ValueForm::fold_e4m3) tensors.push_back(&o.fold_scale);
  std::erase_if(tensors, [](const at::Tensor* t) { return !t->defined(); });
  return tensors;
}

Operand rows_of(Operand o, int64_t first, int64_t rows) {
  if (rows == o.rows) return o;
  check(!o.panels.defined() && !o.values_transposed && o.groups == 0 && o.spec.granularity != Granularity::tile,
        "rows of {}: expected a copy along rows", o);
  for (at::Tensor* t : tensors_of_rows(o)) *t = t->narrow(0, first, rows);
  o.rows = rows;
  return o;
}

std::string form_text(const Operand& o) {
  if (o.panels.defined()) return o.panel_type == DType::s8 ? "int8 panels" : o.panel_type == DType::f32 ? "fp32 panels" : "bf16 panels";
  if (!o.spec.quantized()) return "plain values";
  if (o.form == ValueForm::fold_e4m3) return "folded e4m3 codes";
  if (o.values.defined()) return "bf16 values";
  return o.packed.defined() ? "packed codes" : "codes";
}

at::Tensor decode(const Operand& o, gemm::Decode what, at::ScalarType type) {
  check(o.groups == 0, "decode: expected an operand without groups of rows, found {}", o.groups);
  at::Tensor out = at::empty({o.rows, o.k}, o.scales.options().dtype(type));
  gemm::DecodeCopy p;
  p.copy = view(o), p.rows = o.rows, p.cols = o.k, p.what = what;
  p.type = type == at::kChar ? DType::s8 : kernel_dtype(out), p.out = out.data_ptr();
  if (out.is_cpu()) {
    gemm::decode(p);
  } else {
    cuda::launch("decode", &cuda::Module::decode, p, out.device());
  }
  return out;
}

at::Tensor dequantize(const Operand& o) {
  if (!o.spec.quantized()) return (o.values_transposed ? o.values.t() : o.values).to(at::kFloat);
  return decode(o, gemm::Decode::everything, at::kFloat);
}

}  // namespace halftone

fmt::format_context::iterator fmt::formatter<halftone::Operand>::format(const halftone::Operand& o, fmt::format_context& context) const {
  const std::string spec = o.spec.quantized() ? halftone::describe(o.spec) : "unquantised";
  return fmt::format_to(context.out(), "{} [{} x {}] as {}", spec, o.rows, o.k, halftone::form_text(o));
}
