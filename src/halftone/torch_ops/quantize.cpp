// torch.ops.halftone: quantize, dequantize, fake_quantize, scaled_mm, recipe_formats.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

#include "halftone/formats/support.h"
#include "halftone/ops/common.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"
#include "halftone/torch_ops/layer.h"
#include "halftone/torch_ops/operands.h"

namespace halftone::library {
namespace {

using at::Tensor;
using c10::SymInt;
using Text = std::string_view;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Five quantize_op(const Tensor& x, Text format_text, bool transposed, Text stream, int64_t seed, int64_t step, int64_t first_row) {
  const Format format = parse_format(format_text);
  const c10::DeviceGuard guard(x.device());
  const std::vector<Tensor> t = tensors(quantize(x, format, transposed, {std::string(stream), seed, step, first_row}), format);
  return {t[0], t[1], t[2], t[3], t[4]};
}

SymInt divided(const SymInt& n, int64_t by) { return (n + (by - 1)) / by; }

// Shapes of the outputs of halftone::quantize (quantize/operand.h).
Five quantize_meta(const Tensor& x, Text format_text, bool transposed, Text, SymInt, SymInt, SymInt) {
  const Format format = parse_format(format_text);
  const OperandSpec& s = format.spec;
  check_matrix(x, format, transposed);
  const SymInt rows = x.sym_size(transposed ? 1 : 0);
  SymInt k = x.sym_size(transposed ? 0 : 1);
  if (s.hadamard > 0) k = divided(k, s.hadamard) * s.hadamard;
  const bool bytes = s.scale == ScaleFormat::e8m0 || s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3;
  const bool integer = is_integer(s.element) && !format.packed;
  const auto make = [&](std::vector<SymInt> shape, at::ScalarType type) { return at::empty_symint(shape, x.options().dtype(type)); };
  std::vector<SymInt> shape = {1};
  if (s.granularity == Granularity::row) shape = {rows};
  if (s.granularity == Granularity::block) shape = {rows, divided(k, s.block)};
  if (s.granularity == Granularity::tile) shape = {divided(rows, s.block), divided(k, s.block)};
  const SymInt macro_rows = s.granularity == Granularity::tile ? divided(rows, 128) : rows;
  return {make({rows, format.packed ? k / 2 : k}, integer ? at::kChar : at::kByte), make(shape, bytes ? at::kByte : at::kFloat),
          make({s.two_level == TwoLevel::tensor ? 1 : 0}, at::kFloat),
          s.two_level == TwoLevel::macro ? make({macro_rows, divided(k, 128)}, at::kByte) : make({0}, at::kByte),
          s.element == Element::uint4 ? make(shape, at::kFloat) : make({0}, at::kFloat)};
}

Tensor numbers(const Operand& o, at::ScalarType type) {
  if (o.rows * o.k == 0) return at::empty({o.rows, o.k}, o.scales.options().dtype(type));
  const Tensor y = dequantize(o).to(type);
  // A canonical NaN (docs/spec/numerics.md 2.2): PyTorch's conversion produces another on some CPUs.
  return type == at::kFloat ? y : y.masked_fill_(y.isnan(), std::numeric_limits<double>::quiet_NaN());
}

void check_numbers(at::ScalarType type) {
  check(at::isFloatingType(type) && c10::elementSize(type) > 1,
        "halftone.dequantize: expected a floating-point dtype of 16 bits or more, found {}", c10::toString(type));
}
Tensor dequantize_op(at::TensorList t, Text format, at::ScalarType dtype) {
  check_numbers(dtype);
  const Operand o = operand("halftone.dequantize", t, parse_format(format));
  check(o.spec.quantized(), "halftone.dequantize: format hp is an unquantised matrix");
  const c10::DeviceGuard guard(o.scales.device());
  return numbers(o, dtype);
}

Tensor dequantize_meta(at::TensorList t, Text format_text, at::ScalarType dtype) {
  check_numbers(dtype);
  const Format format = parse_format(format_text);
  check(t.size() == 5 && t[0].dim() == 2, "halftone.dequantize: expected the five tensors of halftone.quantize, found {}", t.size());
  for (const Tensor& part : t) check_beside("halftone.dequantize", "every tensor", part, t[0]);
  const SymInt k = t[0].sym_size(1);
  return at::empty_symint({t[0].sym_size(0), format.packed ? k * 2 : k}, t[0].options().dtype(dtype));
}

void check_fake(const Tensor& x, const Format& format) {
  kernel_dtype(x);
  check(format.spec.quantized(), "halftone.fake_quantize: format hp is an unquantised matrix");
  check(format.spec.hadamard == 0, "halftone.fake_quantize: a rotation is not undone; quantise and dequantise by hand");
  check(x.dim() >= 1, "halftone.fake_quantize: expected at least one dimension");
}
Tensor fake_quantize_op(const Tensor& x, Text format_text, bool transposed, Text stream, int64_t seed, int64_t step, int64_t first_row) {
  const Format format = parse_format(format_text);
  check_fake(x, format);
  const c10::DeviceGuard guard(x.device());
  Format codes = format;
  codes.packed = false;
  const int64_t cols = x.size(-1), rows = x.numel() / std::max<int64_t>(cols, 1);
  const Tensor y =
      numbers(quantize(x.reshape({rows, cols}), codes, transposed, {std::string(stream), seed, step, first_row}), x.scalar_type());
  return (transposed ? y.t().contiguous() : y).view(x.sizes());
}

Tensor fake_quantize_meta(const Tensor& x, Text format_text, bool, Text, SymInt, SymInt, SymInt) {
  check_fake(x, parse_format(format_text));
  return at::empty_symint(x.sym_sizes(), x.options());
}

// Straight-through estimator: the gradient passes unchanged.
class FakeQuantize : public torch::autograd::Function<FakeQuantize> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const std::string& format, bool transposed,
                        const std::string& stream, const SymInt& seed, const SymInt& step, const SymInt& first_row) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("halftone::fake_quantize", "")
                               .typed<Tensor(const Tensor&, Text, bool, Text, SymInt, SymInt, SymInt)>();
    return op.call(x, format, transposed, stream, seed, step, first_row);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& dy) {
    return {dy[0], Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor fake_quantize_autograd(const Tensor& x, Text format, bool transposed, Text stream, SymInt seed, SymInt step, SymInt first_row) {
  return FakeQuantize::apply(x, std::string(format), transposed, std::string(stream), std::move(seed), std::move(step),
                             std::move(first_row));
}

constexpr int64_t kDeviceMultiple = 16;  // bytes of the vectors that GEMMs on the GPU read

// The operand in the form that GEMMs take: on a CUDA device padded with zero codes, and mxfp4 as bf16 values (exact), because only the
// quantiser makes its folded form.
Operand readable(Operand o, bool fold) {
  const Tensor& any = o.spec.quantized() ? o.scales : o.values;
  if (any.is_cpu()) return o;
  if (const int64_t rest = o.k % kDeviceMultiple; rest != 0) {
    const int64_t more = kDeviceMultiple - rest;
    for (Tensor* t : {&o.codes, &o.values}) {
      if (t->defined()) *t = at::constant_pad_nd(*t, {0, more});
    }
    if (o.packed.defined()) o.packed = at::constant_pad_nd(o.packed, {0, more / 2});
    o.k += more;
  }
  if (fold) return plain_operand(decode(o, gemm::Decode::values, at::kBFloat16), false);
  return o;
}

// Whether the GPU multiplies these operands as folded codes (formats/support.h).
bool folds(const OperandSpec& a, const OperandSpec& b, at::Device device) {
  return device.is_cuda() && a.quantized() && b.quantized() && product_support(a, b, hardware_of(device)).path == Path::folded;
}

// Rotated tokens need tokens with the same rotation.
void check_rotations(const OperandSpec& a, const OperandSpec& b) {
  check(a.hadamard == b.hadamard && (a.hadamard == 0 || a.signs == b.signs),
        "halftone.scaled_mm: expected operands of one rotation, found hadamard={} and hadamard={}, with signs {} and {}", a.hadamard,
        b.hadamard, name_of(kSignsNames, a.signs), name_of(kSignsNames, b.signs));
}
void check_out_dtype(at::ScalarType type) {
  check(type == at::kFloat || type == at::kBFloat16, "halftone.scaled_mm: expected out_dtype float32 or bfloat16, found {}",
        c10::toString(type));
}
Tensor scaled_mm_op(at::TensorList a_tensors, Text a_format, at::TensorList b_tensors, Text b_format, const std::optional<Tensor>& bias,
                    at::ScalarType out_dtype, bool fast_accum, bool emulate) {
  Operand a = operand("halftone.scaled_mm: a", a_tensors, parse_format(a_format));
  Operand b = operand("halftone.scaled_mm: b", b_tensors, parse_format(b_format));
  const at::Device device = a_tensors[0].device();
  check(a.k == b.k && b_tensors[0].device() == device,
        "halftone.scaled_mm: expected operands of equal length on one device, found {} on {} and {} on {}", a.k, device.str(), b.k,
        b_tensors[0].device().str());
  check_rotations(a.spec, b.spec), check_out_dtype(out_dtype);
  const c10::DeviceGuard guard(device);
  ProductOptions options;
  options.fast_accum = fast_accum, options.emulate = emulate;
  if (bias.has_value() && bias->defined()) {
    check(bias->dim() == 1 && bias->size(0) == b.rows && bias->device() == device,
          "halftone.scaled_mm: expected a bias of [{}] on {}, found [{}] on {}", b.rows, device.str(), fmt::join(bias->sizes(), ", "),
          bias->device().str());
    options.bias = bias->to(at::kFloat).contiguous();
  }
  const Tensor out = at::empty({a.rows, b.rows}, a_tensors[0].options().dtype(out_dtype));
  if (out.numel() == 0) return out;
  if (a.k == 0) {
    options.bias.defined() ? out.copy_(options.bias.expand(out.sizes())) : out.zero_();
    return out;
  }
  const auto factors = [](const OperandSpec& s) { return s.clip != Clip::none || s.two_level != TwoLevel::none; };
  bool fold = !emulate && folds(a.spec, b.spec, device);
  if (fold && (factors(a.spec) || factors(b.spec))) fold = false, options.emulate = true;  // folded codes would lose these scales
  a = readable(std::move(a), fold), b = readable(std::move(b), fold);
  multiply(a, b, out, options);
  return out;
}

Tensor scaled_mm_meta(at::TensorList a, Text a_format, at::TensorList b, Text b_format, const std::optional<Tensor>& bias,
                      at::ScalarType out_dtype, bool, bool) {
  const Format of_a = parse_format(a_format), of_b = parse_format(b_format);
  check(!a.empty() && !b.empty() && a[0].dim() == 2 && b[0].dim() == 2, "halftone.scaled_mm: expected two operands of matrices");
  for (const at::TensorList operand : {a, b}) {
    for (const Tensor& part : operand) check_beside("halftone.scaled_mm", "every tensor", part, a[0]);
  }
  const SymInt k = a[0].sym_size(1) * (of_a.packed ? 2 : 1), other = b[0].sym_size(1) * (of_b.packed ? 2 : 1);
  check(k == other, "halftone.scaled_mm: expected operands of equal length, found {} and {}", shape(a[0]), shape(b[0]));
  check_rotations(of_a.spec, of_b.spec), check_out_dtype(out_dtype);
  if (bias.has_value() && bias->defined()) {
    check_beside("halftone.scaled_mm", "bias", *bias, a[0]);
    check(bias->dim() == 1 && bias->sym_size(0) == b[0].sym_size(0), "halftone.scaled_mm: expected a bias for the rows of {}, found {}",
          shape(b[0]), shape(*bias));
  }
  return at::empty_symint({a[0].sym_size(0), b[0].sym_size(0)}, a[0].options().dtype(out_dtype));
}

std::vector<std::string> recipe_formats(Text recipe, Text options) {
  const LinearRecipe r = parse_recipe(std::string(recipe), std::string(options), "recipe_formats");
  std::vector<std::string> out;
  for (const OperandSpec* s : {&r.x_forward, &r.w_forward, &r.dy_dgrad, &r.w_dgrad, &r.dy_wgrad, &r.x_wgrad})
    out.push_back(format_string(*s));
  return out;
}

std::string canonical_format(Text text) {
  const Format f = parse_format(text);
  return format_string(f.spec, f.packed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(halftone, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "quantize(Tensor x, str format, *, bool transposed=False, str stream='x', SymInt seed=0, SymInt step=0, SymInt first_row=0) -> "
      "(Tensor codes, Tensor scales, Tensor outer, Tensor macro, Tensor zeros)",
      tags);
  m.def(
      "fake_quantize(Tensor x, str format, *, bool transposed=False, str stream='x', SymInt seed=0, SymInt step=0, SymInt first_row=0) -> "
      "Tensor",
      tags);
  m.def("dequantize(Tensor[] operand, str format, *, ScalarType dtype=float32) -> Tensor", tags);
  m.def(
      "scaled_mm(Tensor[] a, str a_format, Tensor[] b, str b_format, *, Tensor? bias=None, ScalarType out_dtype=bfloat16, "
      "bool fast_accum=False, bool emulate=False) -> Tensor",
      tags);
  m.def("recipe_formats(str recipe, str options='') -> str[]", &recipe_formats);
  m.def("canonical_format(str format) -> str", &canonical_format);
}

namespace {

void quantizers(torch::Library& m) {
  m.impl("quantize", &quantize_op);
  m.impl("fake_quantize", &fake_quantize_op);
  m.impl("dequantize", &dequantize_op);
  m.impl("scaled_mm", &scaled_mm_op);
}

}  // namespace

TORCH_LIBRARY_IMPL(halftone, CPU, m) { quantizers(m); }
TORCH_LIBRARY_IMPL(halftone, CUDA, m) { quantizers(m); }
TORCH_LIBRARY_IMPL(halftone, Meta, m) {
  m.impl("quantize", &quantize_meta);
  m.impl("fake_quantize", &fake_quantize_meta);
  m.impl("dequantize", &dequantize_meta);
  m.impl("scaled_mm", &scaled_mm_meta);
}
TORCH_LIBRARY_IMPL(halftone, Autograd, m) {
  m.impl("fake_quantize", &fake_quantize_autograd);
  for (const char* name : {"quantize", "dequantize", "scaled_mm"}) m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace halftone::library
