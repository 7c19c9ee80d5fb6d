#include "halftone/cli/format_tables.h"

#include <fmt/format.h>

#include <bit>

#include "halftone/cli/text_table.h"
#include "halftone/formats/describe.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx9.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/names.h"
#include "halftone/formats/support.h"

namespace halftone {
namespace {

std::string power(double v) {  // "2^n" for exact powers of two
  int e = 0;
  for (double x = v; x < 1; x *= 2) --e;
  return v < 1 && FloatSpec::pow2(e) == v ? fmt::format("2^{}", e) : fmt::format("{}", v);
}

const char* specials(Specials s) {
  return s == Specials::Ieee      ? "Inf, NaN as in IEEE 754"
         : s == Specials::NanOnly ? "one NaN per sign, no Inf"
                                  : "none: every code is finite";
}

}  // namespace

std::string_view name(Int i) { return kElementNames[std::size(kFloats) + static_cast<size_t>(i)].first; }

std::string_view name(Element e) { return name_of(kElementNames, e, "bf16"); }

std::string_view name(ScaleFormat s) {
  constexpr std::array<std::string_view, 7> kNames = {"none", "fp32", "fp32_pow2", "e8m0", "e4m3", "ue5m3", "bf16"};
  return kNames[static_cast<size_t>(s)];
}

std::string_view name(ScaleMode m) { return name_of(kScaleModeNames, m, "none"); }

std::string element_table() {
  TextTable floats({"float", "bits s.e.m", "bias", "largest", "least normal", "least subnormal", "special values"});
  for (const Float f : kFloats) {
    const FloatSpec s = spec(f);
    floats.row({name(f), fmt::format("1.{}.{}", s.exponent_bits, s.mantissa_bits), fmt::format("{}", s.bias),
                fmt::format("{} (0x{:02X})", s.max_finite(), s.max_code()), power(s.min_normal()), power(s.min_subnormal()),
                specials(s.specials)});
  }
  TextTable ints({"integer", "bits", "codes", "value"});
  for (const Int i : kInts) {
    const IntSpec s = spec(i);
    ints.row({std::string(name(i)), fmt::format("{}", s.bits), fmt::format("{} .. {}", s.lowest, s.highest),
              s.zero_point ? "zero + code * scale" : "code * scale"});
  }
  TextTable blocks({"block", "bytes", "bits/element", "value"});
  for (const int bits : {8, 5}) {
    blocks.row({bits == 8 ? "mx9" : "mx6", fmt::format("{} for {} elements", mx9_bytes(bits), kMx9Block),
                fmt::format("{}", 8.0 * mx9_bytes(bits) / kMx9Block),
                fmt::format("int{} * 2^e, e one less for pairs with their prime bit", bits)});
  }
  return floats.text() + "\n" + ints.text() + "\n" + blocks.text();
}

std::string scale_format_table() {
  TextTable t({"scale", "bits", "values", "zero", "NaN"});
  t.row({"fp32", "32", "any; of fp8 tensors, rows, 1x128 and 128x128 blocks, integer rows, outer factors; scale and zero of int4_weight",
         "kept above by a floor", "quiet NaN"});
  t.row({"fp32_pow2", "32", "powers of two (p2 below); fp8 rows", "kept above by a floor", "quiet NaN"});
  t.row({"e8m0", "8", fmt::format("2^-127 .. 2^127, byte = exponent + 127"), "none", fmt::format("byte {}", kE8m0Nan)});
  t.row({"e4m3", "8", fmt::format("as the element; NVFP4 blocks of 16, largest {}", spec(Float::e4m3).max_finite()), "0x00",
         fmt::format("0x{:02X}", block_scale_nan(ScaleFormat::e4m3))});
  t.row({"ue5m3", "8", fmt::format("no sign, bias 15, largest {}; AMDFP4 blocks of 16", kUe5m3Max), "0x00",
         fmt::format("0x{:02X}", kUe5m3Nan)});
  t.row({"bf16", "16", "scale and zero of uint4 groups quantised from Python, rounded up and down; of no recipe", "kept above by a floor",
         "quiet NaN"});
  return t.text();
}

std::string bump_condition(Float f, ScaleMode mode) {
  const uint32_t base = std::bit_cast<uint32_t>(1.0f), top = std::bit_cast<uint32_t>(2.0f);
  const int least = mx_exponent(f, mode, base);
  if (mx_exponent(f, mode, top - 1) == least) return "never";
  uint32_t low = base, high = top - 1;  // exponents grow with amax: low has the smaller one, high the larger one
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (mx_exponent(f, mode, middle) == least ? low : high) = middle;
  }
  // The neighbor with the shorter decimal is the bound.
  const bool exclusive = std::countr_zero(low) > std::countr_zero(high);
  return fmt::format("m {} {}", exclusive ? ">" : ">=", std::bit_cast<float>(exclusive ? low : high));
}

std::string scale_rule_table() {
  std::string out =
      "  fp8 amax rule: inv_scale = largest / amax (amax floored at 1e-12), scale = 1 / inv_scale; power of two: inv_scale cut to its "
      "exponent\n"
      "  int8: amax / 127; int4: max(positive / 7, negative / 8); uint4: zero = min, (max - min) / 15; ternary: mean of |w|; floors 1e-12, "
      "bitnet 1e-5\n";
  for (const ScaleFormat s : {ScaleFormat::e4m3, ScaleFormat::ue5m3}) {
    out += fmt::format("  {} blocks: outer = amax of the tensor / {}, block scale = {} of amax / outer / 6; {}\n", name(s), fp4_range(s),
                       name(s), s == ScaleFormat::e4m3 ? "two orders of evaluation, alto and torchao" : "evaluated as by alto");
  }
  out += fmt::format(
      "  four over six (scale_choice): the block scale of amax / outer / 6 or / 4 with the smaller error, outer = amax of the tensor / {} "
      "or "
      "{}\n"
      "  int4 in e4m3 blocks (nvint4): amax of the tensor / {}, amax / outer / 7; int8 in MX blocks (mxint8): largest 127, p = 6\n",
      fp4_range(ScaleFormat::e4m3, ScaleChoice::squared), fp4_range(ScaleFormat::ue5m3, ScaleChoice::squared),
      fp4_range(ScaleFormat::e4m3, ScaleChoice::amax, 7));
  out += "  MX: scale 2^e, amax = m * 2^k with 1 <= m < 2, p = exponent of the largest element; e = k - p, or k - p + 1 when\n";
  std::vector<std::string> head = {"rule"};
  for (const Float f : kFloats) head.push_back(fmt::format("{}, p = {}", name(f), spec(f).max_exponent()));
  head.push_back("least byte");
  TextTable t(head);
  for (const ScaleMode mode : kScaleModes) {
    std::vector<std::string> cells = {std::string(name(mode))};
    for (const Float f : kFloats) cells.push_back(mode == ScaleMode::uos && f != Float::e2m1 ? "-" : bump_condition(f, mode));
    cells.push_back(fmt::format("{}", mx_lowest_byte(mode)));
    t.row(cells);
  }
  return out + t.text();
}

std::vector<NamedOperand> operands_of(const LinearRecipe& r) {
  return {{"forward X", "x.fwd", r.x_forward}, {"forward W", "w.fwd", r.w_forward},  {"dgrad dY", "dy.dgrad", r.dy_dgrad},
          {"dgrad W", "w.dgrad", r.w_dgrad},   {"wgrad dY", "dy.wgrad", r.dy_wgrad}, {"wgrad X", "x.wgrad", r.x_wgrad}};
}

std::string recipe_table() {
  std::vector<std::string> head = {"recipe", "scale"};
  for (const NamedOperand& o : operands_of(kLinearRecipes[0])) head.emplace_back(o.name);
  head.emplace_back("K, N");
  TextTable t(head);
  for (const LinearRecipe& r : kLinearRecipes) {
    const std::string scale = scale_text(r.w_forward);
    std::vector<std::string> cells = {std::string(r.name), r.w_forward.quantized() && scale.empty() ? "fp32" : scale};
    for (const NamedOperand& o : operands_of(r)) {
      cells.push_back(o.spec.same_as_forward ? "same codes"
                      : o.spec.quantized()   ? fmt::format("{} {}{}", name(o.spec.element), group_text(o.spec), rounding_text(o.spec))
                                             : "bf16");
    }
    cells.push_back(r.dim_multiple == 1 ? "any" : fmt::format("x {}", r.dim_multiple));
    t.row(cells);
  }
  return t.text() +
         "\n  1x32: 32 consecutive elements along the contraction share a scale; 32x32: a tile; row: one scale per row or column that is "
         "not\n"
         "  contracted; p2: power of two; outer: an fp32 factor per tensor above the blocks; H32: random Hadamard rotation over 32 "
         "elements\n"
         "  along the contraction; SR: stochastic rounding; EDEN: scales corrected and rounded stochastically; same codes: of the forward "
         "operand (dY: of dgrad). K, N: sizes that the recipe takes; other layers "
         "stay\n"
         "  in bf16. 4-bit floats as in preset recommended; options change every cell (docs/recipes.md).\n";
}

std::string support_table(std::string_view here) {
  std::vector<std::string> head = {"recipe"};
  for (const HardwareRow& h : kHardware) head.emplace_back(h.name == here ? fmt::format("{} *", h.name) : std::string(h.name));
  TextTable t(head);
  std::vector<std::string_view> reasons;
  for (const LinearRecipe& r : kLinearRecipes) {
    std::vector<std::string> cells = {std::string(r.name)};
    for (const HardwareRow& h : kHardware) {
      const Support worst = recipe_support(r, h.hardware).worst();
      size_t i = 0;
      while (i < reasons.size() && reasons[i] != worst.reason) ++i;
      if (i == reasons.size()) reasons.push_back(worst.reason);
      cells.push_back(fmt::format("{} {}", name(worst.how), i + 1));
    }
    t.row(cells);
  }
  std::string out = t.text() + "\n";
  for (size_t i = 0; i < reasons.size(); ++i) out += fmt::format("  {:2} {}\n", i + 1, reasons[i]);
  TextTable meaning({"hardware", ""});
  for (const HardwareRow& h : kHardware)
    meaning.row({std::string(h.name), fmt::format("{}{}", h.meaning, h.name == here ? " (* this machine)" : "")});
  return out + "\n" + meaning.text() +
         "\n  native: units made for the codes multiply them. rewrite: other units form the same sum of the same products, because every\n"
         "  operand is exact in their format. emulated: fp32 products of dequantised operands. A recipe is as its weakest product;\n"
         "  `halftone formats --show RECIPE` tells all three.\n";
}

}  // namespace halftone
