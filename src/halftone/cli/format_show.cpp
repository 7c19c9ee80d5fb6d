#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "halftone/cli/format_example.h"
#include "halftone/cli/format_tables.h"
#include "halftone/cli/text_table.h"
#include "halftone/formats/bf16_round.h"
#include "halftone/formats/describe.h"
#include "halftone/formats/float_code.h"
#include "halftone/formats/mx9.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/support.h"

namespace halftone {
namespace {

std::string example_text(const WorkedExample& e) {
  std::string out;
  for (const auto& [what, value] : e.steps) {
    std::string indented = value;
    for (size_t at = 0; (at = indented.find('\n', at)) != std::string::npos; at += 19) indented.insert(at + 1, 18, ' ');
    out += fmt::format("    {:<13} {}\n", what, indented);
  }
  return out;
}

std::string example_of_8(const OperandSpec& o) { return example_text(work_out(o, example_numbers(8), "x.fwd")); }

// Every code if they fit on a page, else landmarks.
std::string float_codes(Float f) {
  const FloatSpec s = spec(f);
  const int digits = s.bits() > 4 ? 2 : 1;
  if (s.bits() <= 6) {
    std::string out = "  codes with the sign clear, and their values:\n";
    for (int c = 0; c < s.sign_mask(); ++c) {
      out += fmt::format("{}0x{:0{}X} {:<8}", c % 8 == 0 ? "    " : "  ", c, digits, fmt::format("{}", decode(f, static_cast<uint8_t>(c))));
      if (c % 8 == 7) {
        while (out.ends_with(' ')) out.pop_back();
        out += '\n';
      }
    }
    return out;
  }
  TextTable t({"code", "value", ""});
  for (const auto& [c, what] :
       std::vector<std::pair<int, const char*>>{{0, "zero; 0x80 is -0"},
                                                {1, "least subnormal"},
                                                {1 << s.mantissa_bits, "least normal"},
                                                {encode(f, 1.0f), "one"},
                                                {s.max_code(), "largest; what is beyond saturates"},
                                                {s.max_code() + 1, s.specials == Specials::Ieee ? "infinity, never produced" : "NaN"},
                                                {0x7F, "what every element of a group with NaN or Inf gets"}})
    t.row({fmt::format("0x{:02X}", c), fmt::format("{}", decode(f, static_cast<uint8_t>(c))), what});
  return t.text();
}

std::string rounding_example(Float f) {
  const FloatSpec s = spec(f);
  const auto largest = static_cast<float>(s.max_finite());
  const int digits = s.bits() > 4 ? 2 : 1;
  TextTable t({"y", "nearest, ties to even", "stochastic"});
  for (const float y :
       {0.3f, static_cast<float>(s.min_subnormal()) / 2, 1.0f + 0.75f * static_cast<float>(FloatSpec::pow2(-s.mantissa_bits)),
        1.0f + 0.5f * static_cast<float>(FloatSpec::pow2(-s.mantissa_bits)), -0.7f * largest, 2 * largest, -1e-30f}) {
    const uint8_t code = encode(f, y);
    const auto p = detail::position(s, static_cast<double>(y < 0 ? -y : y));
    const uint8_t down = encode_sr(f, y, 0xFFFF), up = encode_sr(f, y, 0);
    t.row({fmt::format("{:g}", y), fmt::format("0x{:0{}X} = {}", code, digits, decode(f, code)),
           up == down ? fmt::format("{} always", decode(f, up))
                      : fmt::format("{} with probability {:.3f}, else {}", decode(f, up), p.f, decode(f, down))});
  }
  return t.text();
}

std::string used_by(auto&& uses) {
  std::string out;
  for (const LinearRecipe& r : kLinearRecipes) {
    const auto operands = operands_of(r);
    if (std::any_of(operands.begin(), operands.end(), [&](const NamedOperand& o) { return uses(o.spec); })) {
      out += (out.empty() ? "" : ", ") + std::string(r.name);
    }
  }
  return out.empty() ? "no recipe" : out;
}

std::string show_float(Float f) {
  const FloatSpec s = spec(f);
  return fmt::format(
             "{}: {} bits: sign, {} of exponent (bias {}), {} of mantissa. Value of code: exponent field e > 0: (-1)^s 2^(e - {}) (1 + m / "
             "{});\n"
             "e = 0: (-1)^s 2^{} m / {}. Elements of: {}.\n\n",
             name(f), s.bits(), s.exponent_bits, s.bias, s.mantissa_bits, s.bias, 1 << s.mantissa_bits, 1 - s.bias, 1 << s.mantissa_bits,
             used_by([&](const OperandSpec& o) { return name(o.element) == name(f); })) +
         float_codes(f) + "\n  rounding a number y that was divided by its scale:\n" + rounding_example(f);
}

// fp32 and bf16, the unquantized formats: sign, 8 bits of exponent, `mantissa` bits of mantissa, as in IEEE 754.
std::string show_wide(bool fp32) {
  const int mantissa = fp32 ? 23 : 7;
  const auto code = [&](uint32_t bits) { return fp32 ? fmt::format("0x{:08X}", bits) : fmt::format("0x{:04X}", bits >> 16); };
  const uint32_t unit = 1u << (23 - mantissa), infinity = 0x7F800000u;
  std::string out = fmt::format(
      "{}: {} bits: sign, 8 of exponent (bias 127), {} of mantissa{}. Value of code: exponent field e from 1 to 254:\n"
      "(-1)^s 2^(e - 127) (1 + m / {}); e = 0: (-1)^s 2^-126 m / {}; e = 255: infinity (m = 0) or NaN.\n",
      fp32 ? "fp32" : "bf16", mantissa + 9, mantissa, fp32 ? "" : ", the upper half of an fp32", 1 << mantissa, 1 << mantissa);
  const auto scaled_by = [](ScaleFormat s) { return used_by([s](const OperandSpec& o) { return o.scale == s; }); };
  out += fp32
             ? fmt::format(
                   "Type of weights that the optimizer keeps (training.dtype), sums of products, gradients of weights, losses. Scales of:\n"
                   "{}; rounded to powers of two of: {};\n"
                   "outer factors of nvfp4 and amdfp4.\n\n",
                   scaled_by(ScaleFormat::fp32), scaled_by(ScaleFormat::fp32_pow2))
             : "Type of activations and of operands that a recipe leaves unquantised. As a scale: of uint4 groups quantised from Python\n"
               "(docs/python.md); of no recipe.\n\n";
  TextTable t({"code", "value", ""});
  for (const auto& [bits, what] :
       std::vector<std::pair<uint32_t, const char*>>{{0, "zero"},
                                                     {unit, "least subnormal"},
                                                     {0x00800000u, "least normal: 2^-126"},
                                                     {0x3F800000u, "one"},
                                                     {0x3F800000u + unit, "the next"},
                                                     {infinity - unit, "largest"},
                                                     {infinity, "infinity"},
                                                     {0x7FC00000u, "the NaN of scales whose group has NaN or Inf"}}) {
    t.row({code(bits), fmt::format("{:.9g}", std::bit_cast<float>(bits)), what});
  }
  out += t.text() + "\n  rounding to nearest, ties to even:\n";
  TextTable rounding({"y", "code", "value"});
  for (const double y : {0.1, 1 + std::ldexp(1, -mantissa - 1), 1 + 3 * std::ldexp(1, -mantissa - 1), -1.0 / 3, 65537.0, 1e-40}) {
    const auto nearest = static_cast<float>(y);  // exact for bf16, except 0.1, -1/3 and 1e-40, which are no ties
    const float value = fp32 ? nearest : bf16_nearest(nearest);
    rounding.row({fmt::format("{:.10g}", y), code(std::bit_cast<uint32_t>(value)), fmt::format("{:.9g}", value)});
  }
  out += rounding.text();
  OperandSpec o = fp32 ? detail::tensor(Element::e4m3) : detail::block(Element::uint4, 32, ScaleFormat::bf16);
  out += fmt::format("\n  as a scale: {}, one group of 8 elements:\n", fp32 ? "e4m3" : "uint4, zero rounded down, scale up");
  out += example_of_8(o);
  if (!fp32) return out;
  o.scale = ScaleFormat::fp32_pow2;
  return out + "\n  the same with a power of two:\n" + example_of_8(o);
}

std::string show_fp32_pow2() {
  OperandSpec o = detail::tensor(Element::e4m3);
  o.scale = ScaleFormat::fp32_pow2;
  return fmt::format(
             "fp32_pow2: scales in fp32 that are powers of two: largest / amax is cut to its exponent, the scale is 1 / that.\n"
             "Scales of: {}. `halftone formats --show fp32` shows the format itself.\n\n  e4m3, one group of 8 elements:\n",
             used_by([](const OperandSpec& s) { return s.scale == ScaleFormat::fp32_pow2; })) +
         example_of_8(o);
}

std::string show_int(Int i) {
  const IntSpec s = spec(i);
  OperandSpec o;
  o.element = *find_named(kElementNames, name(i));
  o.granularity = i == Int::uint4 ? Granularity::block : i == Int::ternary ? Granularity::tensor : Granularity::row;
  o.block = i == Int::uint4 ? 32 : 0;
  o.scale = ScaleFormat::fp32;
  std::string out = fmt::format("{}: {} bits, codes {} .. {}, value = {}. Elements of: {}.\n\n  one group, rounded to nearest:\n", name(i),
                                s.bits, s.lowest, s.highest, s.zero_point ? "zero + code * scale" : "code * scale",
                                used_by([&](const OperandSpec& spec) { return spec.element == o.element; }));
  out += example_of_8(o);
  o.stochastic = true;
  return out + "\n  the same with stochastic rounding:\n" + example_of_8(o);
}

std::string show_scale_byte(ScaleFormat f) {
  const bool e8m0 = f == ScaleFormat::e8m0;
  std::string out =
      e8m0 ? "e8m0: scales of MX blocks. 8 bits of exponent: 2^(byte - 127); byte 255 is NaN and poisons the block; no zero, no sign.\n\n"
           : "ue5m3: scales of AMDFP4 blocks. 5 bits of exponent, 3 of mantissa, bias 15, no sign; 0xFF is NaN; no infinity.\n\n";
  TextTable t({e8m0 ? "byte" : "code", "scale"});
  for (const uint8_t c :
       e8m0 ? std::vector<uint8_t>{0, 1, 126, 127, 128, 254, 255} : std::vector<uint8_t>{0, 1, 8, 0x70, 0x78, 0x79, 0xFE, 0xFF})
    t.row({e8m0 ? fmt::format("{}", c) : fmt::format("0x{:02X}", c), fmt::format("{}", e8m0 ? decode_e8m0(c) : decode_ue5m3(c))});
  out += t.text();
  if (e8m0)
    return out +
           "\n  `halftone formats --show adaptive` (or floor, ceil, rceil, even, uos) shows how the exponent follows from the largest "
           "element.\n";
  TextTable encode_table({"x", "code", "scale"});
  for (const float x : {1.0f, 1.0625f, 1.19f, 0.001f, 1e-6f, 114688.0f, 2e5f}) {
    const uint8_t c = encode_ue5m3(x);
    encode_table.row({fmt::format("{}", x), fmt::format("0x{:02X}", c), fmt::format("{}", decode_ue5m3(c))});
  }
  return out + "\n  nearest code, ties to even:\n" + encode_table.text();
}

std::string show_mode(ScaleMode mode) {
  std::string out =
      fmt::format("{}: rule for the exponent e of an MX block's scale 2^e, amax = m * 2^k with 1 <= m < 2. Default of: {}.\n\n", name(mode),
                  used_by([&](const OperandSpec& s) { return s.mode == mode; }));
  TextTable t({"element", "e", "e is one more when"});
  for (const Float f : kFloats) {
    if (mode == ScaleMode::uos && f != Float::e2m1) continue;
    t.row({name(f), fmt::format("k - {}", spec(f).max_exponent()), bump_condition(f, mode)});
  }
  out += t.text() + "\n  e2m1 blocks by their largest element:\n";
  TextTable blocks({"amax", "byte", "scale", "amax / scale", "its value"});
  for (const float a : {0.0f, 3.5f, 4.0f, 5.25f, 6.0f, 6.5f, 7.0f, 7.25f, 7.5f, 1e-40f, INFINITY}) {
    const uint8_t byte = mx_scale_byte(Float::e2m1, mode, std::bit_cast<uint32_t>(a));
    const float y = a * mx_inverse(byte), scale = decode_e8m0(byte);
    blocks.row({fmt::format("{:g}", a), fmt::format("{}", byte), fmt::format("{:g}", scale), fmt::format("{:g}", y),
                fmt::format("{:g}", decode(Float::e2m1, encode(Float::e2m1, y)) * scale)});
  }
  return out + blocks.text();
}

std::string show_mx9(int bits) {
  std::vector<float> x = example_numbers(kMx9Block);
  std::array<uint8_t, 18> packed{};
  std::array<float, kMx9Block> values{};
  mx9_encode(bits, x.data(), kMx9Block, packed.data());
  mx9_decode(bits, packed.data(), kMx9Block, values.data());
  const auto line = [](const auto& v, int n, auto&& text) {
    std::string out;
    for (int i = 0; i < n; ++i) out += (i % 8 == 0 && i > 0 ? "\n                " : i > 0 ? " " : "") + text(v[static_cast<size_t>(i)]);
    return out;
  };
  const auto number = [](float v) { return fmt::format("{:>9.5g}", v); };
  return fmt::format(
      "{}: blocks of {} elements in {} bytes: e8m0 exponent of the largest element, a prime bit per pair that halves its scale, integers "
      "of {} bits.\n"
      "A format of trained weights and activations, forward only; no recipe trains in it.\n\n"
      "    x           {}\n    exponent    {} = 2^{}\n    prime bits  0x{:02X}\n    bytes       {}\n    value       {}\n",
      bits == 8 ? "mx9" : "mx6", kMx9Block, mx9_bytes(bits), bits, line(x, kMx9Block, number), packed[0], int{packed[0]} - 127, packed[1],
      line(packed, mx9_bytes(bits), [](uint8_t b) { return fmt::format("0x{:02X}", b); }), line(values, kMx9Block, number));
}

// Hardware that runs the recipe in the same way shares a line.
std::string support_lines(const LinearRecipe& r) {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // names of hardware, cells
  for (const HardwareRow& h : kHardware) {
    const RecipeSupport s = recipe_support(r, h.hardware);
    std::vector<std::string> cells;
    for (const std::string_view cell : {name(s.forward.how), name(s.dgrad.how), name(s.wgrad.how), s.worst().reason})
      cells.emplace_back(cell);
    if (rows.empty() || rows.back().second != cells) {
      rows.emplace_back(h.name, std::move(cells));
    } else {
      rows.back().first += fmt::format(", {}", h.name);
    }
  }
  TextTable t({"hardware", "forward", "dgrad", "wgrad", "because"});
  for (auto& [names, cells] : rows) {
    cells.insert(cells.begin(), names);
    t.row(cells);
  }
  return t.text();
}

struct Shown {
  std::string_view name;
  std::function<std::string()> text;
};
std::vector<Shown> shown_formats() {
  std::vector<Shown> out;
  for (const Float f : kFloats) out.push_back({name(f), [f] { return show_float(f); }});
  for (const Int i : kInts) out.push_back({name(i), [i] { return show_int(i); }});
  for (const bool fp32 : {true, false}) out.push_back({fp32 ? "fp32" : "bf16", [fp32] { return show_wide(fp32); }});
  out.push_back({"fp32_pow2", show_fp32_pow2});
  for (const int bits : {8, 5}) out.push_back({bits == 8 ? "mx9" : "mx6", [bits] { return show_mx9(bits); }});
  for (const ScaleFormat s : {ScaleFormat::e8m0, ScaleFormat::ue5m3}) out.push_back({name(s), [s] { return show_scale_byte(s); }});
  for (const ScaleMode m : kScaleModes) out.push_back({name(m), [m] { return show_mode(m); }});
  return out;
}

}  // namespace

std::vector<std::string_view> shown_names() {
  std::vector<std::string_view> names;
  for (const LinearRecipe& r : kLinearRecipes) names.push_back(r.name);
  for (const Shown& s : shown_formats()) {
    if (std::find(names.begin(), names.end(), s.name) == names.end()) names.push_back(s.name);
  }
  return names;
}

std::string show_format(std::string_view wanted) {
  for (const Shown& s : shown_formats()) {
    if (s.name == wanted) return s.text();
  }
  return "";
}

std::string show_recipe(const LinearRecipe& r, const std::vector<std::string>& warnings) {
  std::string out = fmt::format("{}\n\n", r.name);
  TextTable t({"operand", "form"});
  const auto operands = operands_of(r);
  for (const NamedOperand& o : operands) t.row({o.name, describe(o.spec) + (o.spec.same_as_forward ? " (same codes)" : "")});
  out += t.text();
  if (r.dge) out += "  dW is multiplied by the slope of the forward weight quantiser (use_dge)\n";
  for (const std::string& w : warnings) out += "  warning: " + w + "\n";
  out += r.dim_multiple > 1 ? fmt::format("  K and N must be multiples of {}; other layers stay in bf16\n\n", r.dim_multiple) : "\n";
  out += support_lines(r);
  std::vector<OperandSpec> shown;
  for (size_t i = 0; i < operands.size(); ++i) {
    OperandSpec s = operands[i].spec;
    if (!s.quantized()) continue;
    // One row shows the rule of a tile.
    s.granularity = s.granularity == Granularity::tile ? Granularity::block : s.granularity;
    s.same_as_forward = s.stored = false;
    // One rotation is enough, with either rounding.
    const bool seen = s.hadamard > 0 && std::any_of(shown.begin(), shown.end(), [](const OperandSpec& o) { return o.hadamard > 0; });
    if (seen) continue;
    if (std::find(shown.begin(), shown.end(), s) != shown.end()) continue;
    shown.push_back(s);
    const int count = s.hadamard > 0 ? s.hadamard : 8;
    out += fmt::format("\n  {}: {}, {}\n", operands[i].name, describe(operands[i].spec),
                       s.hadamard == 0                                         ? "one group of 8 elements"
                       : std::string_view(operands[i].role).ends_with("dgrad") ? fmt::format("{} elements along N", count)
                                                                               : fmt::format("{} tokens of one column", count));
    out += example_text(work_out(s, example_numbers(count), operands[i].role));
  }
  return out;
}

}  // namespace halftone
