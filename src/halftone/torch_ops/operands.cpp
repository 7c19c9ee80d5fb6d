#include "halftone/torch_ops/operands.h"

#include <ATen/ops/empty.h>

#include "halftone/base/philox.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/support.h"
#include "halftone/ops/common.h"
#include "halftone/quantize/panels.h"
#include "halftone/torch_ops/layer.h"

namespace halftone::library {
namespace {

at::Tensor checked(const char* what, const char* which, const at::Tensor& t, at::IntArrayRef shape, at::ScalarType type,
                   at::Device device) {
  check(t.sizes() == shape && t.scalar_type() == type && t.device() == device,
        "{}: expected {} of [{}] in {} on {}, found [{}] in {} on {}", what, which, fmt::join(shape, ", "), c10::toString(type),
        device.str(), fmt::join(t.sizes(), ", "), c10::toString(t.scalar_type()), t.device().str());
  const at::Tensor packed = t.contiguous();
  // GEMMs read codes 16 bytes at a time; a slice may start anywhere.
  return device.is_cuda() && reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % 16 != 0 ? packed.clone() : packed;
}

}  // namespace

void check_matrix(const at::Tensor& x, const Format& format, bool transposed) {
  const OperandSpec& s = format.spec;
  check(s.quantized(), "halftone.quantize: format hp is an unquantised matrix");
  kernel_dtype(x);
  check(x.dim() == 2, "halftone.quantize: expected a matrix, found {} dimensions", x.dim());
  if (!format.packed || s.hadamard > 0) return;  // a rotation pads its last group to an even length
  const int axis = transposed ? 0 : 1;
  const c10::SymInt length = x.sym_size(axis);
  // A length that a graph does not know is checked when the graph runs.
  if (TORCH_GUARD_OR_FALSE((length % 2).sym_eq(1))) {
    fail(
        "halftone.quantize: expected dimension {} of x to be even for packed codes (two along it share a byte), found {}; give it an even "
        "length or leave 'packed' out of the format",
        axis, length.guard_int(__FILE__, __LINE__));
  }
}

Operand quantize(const at::Tensor& x, const Format& format, bool transposed, const Draws& draws) {
  check_matrix(x, format, transposed);
  const OperandSpec& s = format.spec;
  CopyRequest r;
  r.spec = s, r.packed = format.packed, r.codes = !format.packed;
  r.rounding.stochastic = s.stochastic, r.rounding.step = checked_step("halftone.quantize", draws.step),
  r.rounding.first_row = draws.first_row;
  check(draws.first_row >= 0, "halftone.quantize: expected first_row of at least 0, found {}", draws.first_row);
  const auto seed = static_cast<uint64_t>(draws.seed);
  const std::string weight = draws.stream.substr(0, draws.stream.find('#'));
  if (s.stochastic || s.eden) r.rounding.key = philox_key(seed, draws.stream + (s.eden ? ".scale" : ""));
  if (s.hadamard != 0 && s.signs == Signs::torchao) r.signs = kFixedSigns16;
  if (s.hadamard != 0 && s.signs == Signs::random) {
    const bool dgrad = draws.stream.ends_with(".dgrad");  // the signs of a linear layer's product
    r.signs = RotationSigns(philox(philox_key(seed, weight + (dgrad ? "#rht.dgrad" : "#rht")), 0, static_cast<uint32_t>(draws.step), 0));
  }
  OperandCopies copies = halftone::quantize(x, transposed ? nullptr : &r, transposed ? &r : nullptr);
  return transposed ? copies.transposed : copies.row;
}

std::vector<at::Tensor> tensors(const Operand& o, const Format& format) {
  const at::TensorOptions bytes = o.scales.options().dtype(at::kByte), floats = o.scales.options().dtype(at::kFloat);
  const auto given = [](const at::Tensor& t, const at::TensorOptions& options) { return t.defined() ? t : at::empty({0}, options); };
  at::Tensor codes = format.packed ? o.packed : o.codes;
  if (is_integer(format.spec.element) && !format.packed) codes = codes.view(at::kChar);
  return {codes, o.scales, given(o.outer, floats), given(o.macro, bytes), given(o.zeros, floats)};
}

Operand operand(const char* what, at::TensorList t, const Format& format) {
  const OperandSpec& s = format.spec;
  if (!s.quantized()) {
    check(t.size() == 1 && t[0].dim() == 2, "{}: expected one matrix for an operand in format hp, found {} tensors", what, t.size());
    kernel_dtype(t[0]);
    return plain_operand(row_major(t[0]), false);
  }
  check(t.size() == 5, "{}: expected the five tensors of halftone.quantize (codes, scales, outer, macro, zeros), found {}", what, t.size());
  check(t[0].dim() == 2, "{}: expected codes of a matrix, found {} dimensions", what, t[0].dim());
  Operand o;
  o.spec = s, o.rows = t[0].size(0), o.k = t[0].size(1) * (format.packed ? 2 : 1);
  const at::Device device = t[0].device();
  const bool integer = is_integer(s.element) && !format.packed;
  const at::Tensor codes = checked(what, "codes", t[0], t[0].sizes(), integer ? at::kChar : at::kByte, device);
  (format.packed ? o.packed : o.codes) = integer ? codes.view(at::kByte) : codes;
  const bool byte_scales = s.scale == ScaleFormat::e8m0 || s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3;
  std::vector<int64_t> shape = {1};
  if (s.granularity == Granularity::row) shape = {o.rows};
  if (s.granularity == Granularity::block) shape = {o.rows, ceil_div(o.k, s.block)};
  if (s.granularity == Granularity::tile) shape = {ceil_div(o.rows, s.block), ceil_div(o.k, s.block)};
  o.scales = checked(what, "scales", t[1], shape, byte_scales ? at::kByte : at::kFloat, device);
  if (s.two_level == TwoLevel::tensor) o.outer = checked(what, "an outer scale", t[2], {1}, at::kFloat, device);
  if (s.two_level == TwoLevel::macro) {
    const int64_t rows = s.granularity == Granularity::tile ? ceil_div(o.rows, 128) : o.rows;
    o.macro = checked(what, "macro factors", t[3], {rows, ceil_div(o.k, 128)}, at::kByte, device);
  }
  if (s.element == Element::uint4) o.zeros = checked(what, "zero points", t[4], shape, at::kFloat, device);
  return o;
}

}  // namespace halftone::library
