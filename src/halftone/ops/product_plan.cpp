#include "halftone/ops/product_plan.h"

#include <utility>

#include "halftone/formats/describe.h"
#include "halftone/gemm/decode.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone {
namespace {

bool four_bits(const OperandSpec& s) { return s.element == Element::e2m1 || s.element == Element::int4; }

UnitInput cpu_input(const OperandSpec& a, const OperandSpec& b, DType numbers, bool emulate) {
  if (emulate) return {Path::dequantized, DType::f32, false, true};
  const bool blocks = gemm::scaled_by_block(a) || gemm::scaled_by_block(b);
  if (is_integer(a) && is_integer(b)) return {Path::int8, DType::s8, blocks, true};
  // fp8 and fp4 values times their block scales are exact in bf16.
  return {Path::values, a.quantized() && b.quantized() ? DType::bf16 : numbers, blocks, true};
}

ProductPlan product(LinearProduct which, const LinearRecipe& r, const OperandPlan& left, const OperandPlan& right, const UnitInput& units) {
  ProductPlan p{which, left, right, units};
  p.fast_accum = r.fast_accum[static_cast<size_t>(which)], p.emulate = r.emulate;
  return p;
}

// The form in which ranks exchange rows: codes alone, because values have at least twice their size.
void send_codes(CopyRequest& c) {
  if (is_fold(c.form)) return;
  c.packed = four_bits(c.spec), c.codes = !c.packed;
  c.form = ValueForm::none, c.block_scales = true;
}

// 4-bit codes of an odd number of tokens cannot be packed.
CopyRequest of_tokens(CopyRequest c, int64_t tokens) {
  if (c.packed && tokens % 2 != 0 && c.spec.hadamard == 0) c.packed = false, c.codes = true;
  return c;
}

// Whether siblings can form one operand: on the CPU, if both operands of every product have one dtype or are codes in panels. With biases
// dX is accumulated weight by weight, because each rounds it. (On an H100 joined bf16 products were 3% slower.)
bool can_join(const LinearRecipe& r, const LinearUse& u) {
  const auto joinable = [](const OperandSpec& s) { return !s.quantized() || (has_panels(s) && !s.same_as_forward && !s.stored); };
  const auto pair = [&](const OperandSpec& a, const OperandSpec& b) { return joinable(a) && joinable(b) && a.element == b.element; };
  return is_cpu(u.hardware) && !r.dge && !r.emulate && !u.biases && u.siblings_match && pair(r.x_forward, r.w_forward) &&
         pair(r.dy_dgrad, r.w_dgrad) && pair(r.dy_wgrad, r.x_wgrad);
}

// The outputs of an operand's quantiser that a product reads.
const char* form_text(const OperandPlan& o, const UnitInput& units) {
  const auto panels = [](DType t) { return t == DType::s8 ? "int8 panels" : t == DType::f32 ? "fp32 panels" : "bf16 panels"; };
  if (o.copy.panels) return panels(panel_type(o.copy.spec));
  if (o.packed_once && units.panels) return panels(units.type);
  if (!o.copy.spec.quantized() || (o.packed_once && units.path == Path::dequantized)) return "plain values";
  if (is_fold(o.copy.form)) return "folded e4m3 codes";
  if (o.packed_once ? !units.codes() : o.copy.form != ValueForm::none) return "bf16 values";
  return o.copy.packed && !o.packed_once ? "packed codes" : "codes";
}

std::string operand_text(const OperandPlan& o, const UnitInput& units, int64_t rows, int64_t k) {
  const std::string spec = o.copy.spec.quantized() ? describe(o.copy.spec) : "unquantised", form = form_text(o, units);
  return rows < 0 ? fmt::format("{} as {}", spec, form) : fmt::format("{} [{} x {}] as {}", spec, rows, k, form);
}

std::string fate_text(const OperandPlan& o) {
  constexpr const char* kMatrices[] = {"X", "W", "dY"};
  constexpr const char* kOrigins[] = {"", ", read with its other copy", ", from the forward codes", ", read again"};
  constexpr const char* kSent[] = {"", ", sent as values", ", sent as codes"};
  constexpr const char* kLives[] = {"its product", "wgrad", "the weights change"};
  const bool shared_plain = o.origin == Origin::shared_read && !o.copy.spec.quantized();  // nothing is read for either
  std::string text = fmt::format("{} along {} ({}){}{}", kMatrices[static_cast<int>(o.matrix)], o.columns ? "columns" : "rows", o.role,
                                 shared_plain ? "" : kOrigins[static_cast<int>(o.origin)], kSent[static_cast<int>(o.sent)]);
  if (o.copy.spec.hadamard > 0) text += ", rotated";
  return text + fmt::format(", until {}", kLives[static_cast<int>(o.life)]);
}

}  // namespace

UnitInput unit_input(const OperandSpec& a, const OperandSpec& b, DType numbers, bool emulate, Hardware hardware) {
  if (is_cpu(hardware)) return cpu_input(a, b, numbers, emulate);
  if (emulate) return {Path::dequantized, DType::f32};
  if (!a.quantized() || !b.quantized()) {
    // Sums over blocks of 128 are scaled only in products of codes on both sides.
    const bool blocks = (a.quantized() && gemm::scaled_by_block(a)) || (b.quantized() && gemm::scaled_by_block(b));
    return blocks ? UnitInput{Path::dequantized, DType::f32} : UnitInput{Path::values, numbers};
  }
  const Path path = product_support(a, b, hardware).path;
  return {path, path == Path::dequantized ? DType::f32 : DType::bf16};
}

CopyRequest copy_request(const OperandSpec& spec, const OperandSpec& other, DType numbers, CopyUse use, bool emulate, Hardware hardware) {
  CopyRequest r;
  if (!spec.quantized()) return r;
  constexpr int64_t kVector = 16;  // 8-bit tensor cores read full vectors along the contraction
  const bool cpu = is_cpu(hardware), kept = use == CopyUse::kept;
  const UnitInput units = unit_input(spec, other, numbers, emulate, hardware);
  r.spec = spec, r.multiple = cpu ? 1 : kVector;
  if (cpu && use != CopyUse::rows && has_panels(spec) && units.type == panel_type(spec) && !units.blocks) {
    r.panels = true;
  } else if (units.path == Path::folded) {
    r.form = ValueForm::fold_e4m3;
  } else if (kept && four_bits(spec)) {
    r.packed = true;
  } else if (kept || units.path == Path::dequantized || units.codes() || is_integer(spec) || (cpu && spec.element == Element::uint4)) {
    r.codes = true;  // integers times unquantised values: quantisers write codes at full speed, decoding costs one more pass
  } else {
    r.form = units.type == DType::f32 ? ValueForm::f32 : ValueForm::bf16;
  }
  return r;
}

LinearPlan plan_linear(const LinearRecipe& r, const LinearUse& u) {
  const bool codes = wgrad_reads_forward_codes(r), join = can_join(r, u);
  const auto copy = [&](const OperandSpec& spec, const OperandSpec& other, DType numbers, CopyUse use) {
    return copy_request(spec, other, numbers, use, r.emulate, u.hardware);
  };
  const auto units = [&](const OperandSpec& a, const OperandSpec& b, DType numbers) {
    return unit_input(a, b, numbers, r.emulate, u.hardware);
  };
  // A GPU frees the copies of weights that no later pass of the step reads. A plain operand of experts is a view of the weights' current
  // memory, so both are made anew.
  const bool views = u.grouped && (!r.w_forward.quantized() || !r.w_dgrad.quantized());
  const bool once = views || (u.last_pass && !is_cpu(u.hardware) && !r.dge && !u.grouped);
  const Lifetime weights = once ? Lifetime::product : Lifetime::version;

  DType numbers = numbers_of(r.x_forward, u.x, r.w_forward, u.w);
  OperandPlan x{Matrix::x, false, copy(r.x_forward, r.w_forward, numbers, CopyUse::rows), numbers, "x.fwd"};
  OperandPlan w{Matrix::w, false, copy(r.w_forward, r.x_forward, numbers, CopyUse::rows), numbers, "w.fwd"};
  w.life = weights, w.copy.block_scales = r.dge, w.packed_once = !u.grouped;
  if (u.gathers) {
    x.sent = r.x_forward.quantized() ? Sent::codes : Sent::values;
    if (r.x_forward.quantized()) send_codes(x.copy);
  }
  if (u.keep && codes) x.life = Lifetime::wgrad;
  LinearPlan plan{product(LinearProduct::forward, r, x, w, units(r.x_forward, r.w_forward, numbers)), {}, {}};
  plan.forward.joined = join && !u.keeps_results && u.whole_panels;  // the results are kept weight by weight
  plan.forward.bias = u.biases;

  // Codes shared with another product share its role. The copies of W are made with dY in the dtype of X.
  const DType dy_numbers = numbers_of(r.dy_dgrad, u.dy, r.w_dgrad, u.w), w_numbers = numbers_of(r.dy_dgrad, u.x, r.w_dgrad, u.w);
  OperandPlan dy{Matrix::dy, false, copy(r.dy_dgrad, r.w_dgrad, dy_numbers, CopyUse::rows), dy_numbers, "dy.dgrad"};
  w = {Matrix::w, true, copy(r.w_dgrad, r.dy_dgrad, w_numbers, CopyUse::columns), w_numbers,
       r.w_dgrad.same_as_forward ? "w.fwd" : "w.dgrad"};
  w.life = weights, w.packed_once = !u.grouped;
  const bool both = u.grouped ? r.w_forward.quantized() : u.keep && !join && weights == Lifetime::version;
  if (both && r.w_dgrad.quantized()) w.origin = Origin::shared_read;
  if (u.scatters) dy.sent = Sent::values;
  plan.dgrad = product(LinearProduct::dgrad, r, dy, w, units(r.dy_dgrad, r.w_dgrad, w_numbers));
  plan.dgrad.joined = join && !r.dy_dgrad.quantized();
  plan.dgrad.scales_left = r.w_dgrad.stored && r.w_dgrad.granularity == Granularity::row;

  numbers = numbers_of(r.dy_wgrad, u.dy, r.x_wgrad, u.x);
  dy = {Matrix::dy, true, of_tokens(copy(r.dy_wgrad, r.x_wgrad, numbers, CopyUse::columns), u.tokens), numbers,
        r.dy_wgrad.same_as_forward ? "dy.dgrad" : "dy.wgrad"};
  dy.life = Lifetime::wgrad;
  if (!(u.scatters && u.in_parts)) dy.origin = Origin::shared_read;
  const bool again = !codes && (u.gathers ? r.x_forward.quantized() : u.x_again);
  x = {Matrix::x, true, of_tokens(copy(r.x_wgrad, r.dy_wgrad, u.x, again ? CopyUse::columns : CopyUse::kept), u.tokens), u.x,
       r.x_wgrad.same_as_forward ? "x.fwd" : "x.wgrad"};
  x.origin = codes ? Origin::forward_codes : again ? Origin::read_again : u.gathers ? Origin::own_read : Origin::shared_read;
  x.life = again ? Lifetime::product : Lifetime::wgrad;
  if (u.gathers && again) x.sent = Sent::values;
  plan.wgrad = product(LinearProduct::wgrad, r, dy, x, units(r.dy_wgrad, r.x_wgrad, numbers));
  plan.wgrad.joined = join && !r.dy_wgrad.stochastic;  // random numbers of dY are keyed by each weight's name and width
  plan.wgrad.slopes = r.dge;
  plan.forward.in_parts = plan.dgrad.in_parts = u.in_parts && (u.gathers || u.scatters);
  return plan;
}

double copy_bytes(const CopyRequest& c, Hardware hardware) {
  const OperandSpec& spec = c.spec;
  if (!spec.quantized()) return 0;
  double bytes = (c.codes ? 1 : 0) + (c.packed ? 0.5 : 0);
  if (c.panels) bytes += static_cast<double>(size_of(panel_type(spec)));
  if (c.form != ValueForm::none) bytes += c.form == ValueForm::f32 ? 4 : c.form == ValueForm::bf16 ? 2 : 1;
  const bool bytes_of_scales = has_byte_scales(spec.scale), within = c.form != ValueForm::none && !c.codes && bytes_of_scales;
  if (spec.granularity == Granularity::block && !(within && !is_cpu(hardware))) bytes += (bytes_of_scales ? 1.0 : 4.0) / spec.block;
  return bytes;
}

double right_operand_bytes(const ProductPlan& p) {
  const auto size = static_cast<double>(size_of(p.units.type));
  if (p.units.panels) return size;
  if (!p.right.copy.spec.quantized()) return p.units.type == p.right.numbers ? 0 : size;
  return p.units.codes() || p.units.path == Path::folded ? 1 : size;
}

std::string operands_text(const ProductPlan& p, int64_t m, int64_t n, int64_t k) {
  constexpr const char* kResults[] = {"Y", "dX", "dW"};
  return fmt::format("{} is {} by {}", kResults[static_cast<int>(p.product)], operand_text(p.left, p.units, m, k),
                     operand_text(p.right, p.units, n, k));
}

}  // namespace halftone

fmt::format_context::iterator fmt::formatter<halftone::ProductPlan>::format(const halftone::ProductPlan& p,
                                                                            fmt::format_context& context) const {
  std::string text = fmt::format("{}; {}; {}", halftone::operands_text(p), halftone::fate_text(p.left), halftone::fate_text(p.right));
  for (const auto& [set, what] : {std::pair{p.joined, "siblings joined"},
                                  {p.in_parts, "a part per rank"},
                                  {p.bias, "plus bias"},
                                  {p.slopes, "times slopes"},
                                  {p.scales_left, "dY times stored scales"}}) {
    if (set) text.append("; ").append(what);
  }
  return fmt::format_to(context.out(), "{}", text);
}
