#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace halftone {

// Format of one operand of a linear layer's GEMM (numerics.md section 7). `hp` is the compute dtype, unquantised.
enum class Element { hp, e4m3, e5m2, e3m2, e2m3, e2m1, int8, int4, uint4, ternary };
// Scale granularity. `row`: one scale per non-contracted index; `block`: `block` consecutive elements along the contraction; `tile`: block
// x block.
enum class Granularity { none, tensor, row, block, tile };
// bf16: fp32 values representable in bf16, scales rounded up and zero points down (3.7).
enum class ScaleFormat { none, fp32, fp32_pow2, e8m0, e4m3, ue5m3, bf16 };
// How an e8m0 scale is derived from the block's amax (numerics.md 3.2); none: defined by the scale format.
enum class ScaleMode { none, floor, ceil, rceil, even, adaptive, uos };
// Second scale level above the block scale: one fp32 factor per tensor (nvfp4, amdfp4; 3.4, 3.6), or one per 1x128 or 128x128 macro block
// (mxfp4; 3.5).
enum class TwoLevel { none, tensor, macro };
// Which of amax/6 and amax/4 scales an NVFP4 block: `amax`: always amax/6; the others: the one whose codes have the smaller squared,
// absolute or largest error (four over six, arXiv:2512.02010). The tensor scale then maps amax to 6 * 256.
enum class ScaleChoice { amax, squared, absolute, largest };
// The two evaluation orders of NVFP4 scales (3.4).
enum class Fp4Chain { alto, torchao };
// Signs of a Hadamard transform (section 5): drawn every step, none (the transform alone), or torchao's vector, of width 16.
enum class Signs { random, deterministic, torchao };
// Clipping of mxfp4's wgrad operands (3.3); `fixed` is the spec's static mode.
enum class Clip { none, fixed, dynamic };

struct OperandSpec {
  Element element = Element::hp;
  Granularity granularity = Granularity::none;
  int block = 0;
  ScaleFormat scale = ScaleFormat::none;
  ScaleMode mode = ScaleMode::none;
  TwoLevel two_level = TwoLevel::none;
  Fp4Chain chain = Fp4Chain::alto;
  Clip clip = Clip::none;
  ScaleChoice choice = ScaleChoice::amax;
  int hadamard = 0;              // width of the Hadamard transform along the contraction before quantisation (section 5): 0, 16 to 128
  Signs signs = Signs::random;   // of the transform
  bool stochastic = false;       // stochastic rounding of codes, numerics.md section 4
  bool eden = false;             // MS-EDEN (4.1): codes rounded to nearest, scales corrected and rounded stochastically
  bool stored = false;           // the parameter itself is stored in this format
  bool same_as_forward = false;  // reuses the forward operand's codes
  float scale_floor = 0;         // smallest scale of int8 rows; 0: 1e-12 (bitnet's activations: 1e-5, numerics.md 3.7)
  constexpr bool quantized() const { return element != Element::hp; }
  bool operator==(const OperandSpec&) const = default;
};

// The six operands of a linear layer:
//   forward Y[M,N] = X[M,K] . W[N,K]^T     dgrad dX[M,K] = dY[M,N] . W[N,K]     wgrad dW[N,K] = dY[M,N]^T . X[M,K]
struct LinearRecipe {
  std::string_view name;
  OperandSpec x_forward, w_forward, dy_dgrad, w_dgrad, dy_wgrad, x_wgrad;
  std::array<bool, 3> fast_accum = {false, false, false};  // forward, dgrad, wgrad; fp8 tensor cores only
  int dim_multiple = 1;  // K and N must be multiples, else the layer stays in the compute dtype (section 12)
  bool dge = false;      // dW is multiplied by the slope of the forward weight quantiser (section 6)
  bool emulate = false;  // fp32 GEMMs of dequantised operands instead of GEMMs of codes

  constexpr bool quantized() const {
    return x_forward.quantized() || w_forward.quantized() || dy_dgrad.quantized() || w_dgrad.quantized() || dy_wgrad.quantized() ||
           x_wgrad.quantized();
  }
  // Whether GEMMs read only the quantised copies of the weight.
  constexpr bool reads_weight_codes_alone() const {
    return w_forward.quantized() && w_dgrad.quantized() && !w_forward.stored && w_forward.hadamard == 0 && w_dgrad.hadamard == 0 && !dge;
  }
  // Weight rows (N) that may share a scale: every operand of the weight is sharded at multiples of this.
  constexpr int weight_rows() const {
    const auto rows = [](const OperandSpec& w, bool along_n) {
      if (w.granularity != Granularity::tile && !(along_n && w.granularity == Granularity::block)) return 1;
      return std::max(w.two_level == TwoLevel::macro ? 128 : w.block, along_n ? w.hadamard : 0);
    };
    return std::max({rows(w_forward, false), rows(w_dgrad, true), 1});
  }
  bool operator==(const LinearRecipe&) const = default;
};

// Properties that the schemes of one kind share. Lists of words name options of [quantize] (config/quantize_options.cpp): "use_dge" an
// option, "deosc_step=2000" an option and its value.
struct SchemeFamily {
  std::string_view options{};      // options that its schemes have
  std::string_view recommended{};  // values of unset options in preset "recommended", where they differ from those of preset "alto"
  bool experts = true;             // takes grouped experts as well as linear layers
  bool own_norms = false;          // gives each layer a norm of its own (nn/bitnet.h)
};

// The value behind "name=" in a list of words, "" for the word "name" alone, none without either.
constexpr std::optional<std::string_view> find_word(std::string_view words, std::string_view name) {
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view word = words.substr(at, end - at), value = word.substr(std::min(name.size(), word.size()));
    if (word.starts_with(name) && (value.empty() || value[0] == '=')) return value.empty() ? value : value.substr(1);
    at = end + 1;
  }
  return std::nullopt;
}

constexpr SchemeFamily kNoFamily{};

// A row of the recipe table: everything that is said of one scheme. Hardware follows from the operands (formats/support.h).
struct Scheme : LinearRecipe {
  struct Size {
    int64_t k = 0, n = 0;
  };

  std::string_view help{};
  const SchemeFamily* family = &kNoFamily;
  std::string_view options{};      // beside the family's; "two_level_scaling=tensorwise": no other value than this and the one that is off
  std::string_view recommended{};  // beside the family's
  std::string_view torchao{};      // values that style = torchao fixes
  std::array<Size, 3> small{};     // K and N up to which quantising costs more than it saves (numerics.md 12); all 0: not measured

  constexpr std::optional<std::string_view> find_option(std::string_view name) const {
    const auto own = find_word(options, name);
    return own ? own : find_word(family->options, name);
  }
  constexpr std::optional<std::string_view> find_recommended(std::string_view name) const {
    const auto own = find_word(recommended, name);
    return own ? own : find_word(family->recommended, name);
  }
  constexpr bool too_small(int64_t k, int64_t n) const {
    return std::any_of(small.begin(), small.end(), [&](Size s) { return k <= s.k && n <= s.n; });
  }
};

namespace detail {

constexpr OperandSpec kHp{};
constexpr OperandSpec tensor(Element e) { return {e, Granularity::tensor, 0, ScaleFormat::fp32}; }
constexpr OperandSpec rows(Element e, bool pow2 = false) {
  return {e, Granularity::row, 0, pow2 ? ScaleFormat::fp32_pow2 : ScaleFormat::fp32};
}
constexpr OperandSpec blocks(Granularity g, Element e, int n, ScaleFormat s) {
  OperandSpec o{e, g, n, s};
  if (s == ScaleFormat::e8m0) o.mode = e == Element::e2m1 ? ScaleMode::adaptive : ScaleMode::rceil;
  if (s == ScaleFormat::e4m3 || s == ScaleFormat::ue5m3) o.two_level = TwoLevel::tensor;
  return o;
}
constexpr OperandSpec block(Element e, int n, ScaleFormat s) { return blocks(Granularity::block, e, n, s); }
constexpr OperandSpec tile(Element e, int n, ScaleFormat s) { return blocks(Granularity::tile, e, n, s); }
constexpr OperandSpec again(OperandSpec o) { return o.same_as_forward = true, o; }
constexpr OperandSpec rotated(OperandSpec o) { return o.hadamard = 32, o; }
constexpr OperandSpec eden(OperandSpec o) { return o.hadamard = 128, o.eden = true, o; }
constexpr OperandSpec floored(OperandSpec o, float scale_floor) { return o.scale_floor = scale_floor, o; }
constexpr OperandSpec sr(OperandSpec o) { return o.stochastic = true, o; }
constexpr OperandSpec stored(OperandSpec o) { return o.stored = true, o; }

constexpr LinearRecipe operands(std::string_view name, int multiple, OperandSpec x, OperandSpec w, OperandSpec dy, OperandSpec w_dgrad,
                                OperandSpec dy_wgrad, OperandSpec x_wgrad, bool fast_forward = false) {
  return {name, x, w, dy, w_dgrad, dy_wgrad, x_wgrad, {fast_forward, false, false}, multiple};
}
// All six operands quantised alike, each along its own contraction.
constexpr LinearRecipe uniform(std::string_view name, OperandSpec o, int multiple, bool fast_forward = false) {
  return operands(name, multiple, o, o, o, o, o, o, fast_forward);
}
constexpr LinearRecipe weights_alone(std::string_view name, OperandSpec w, int multiple) {
  return operands(name, multiple, {}, stored(w), {}, stored(w), {}, {});
}
// Quartet II: the nearer of two scales forward, MS-EDEN backward.
constexpr LinearRecipe quartet(std::string_view name) {
  OperandSpec o = block(Element::e2m1, 16, ScaleFormat::e4m3), e = eden(o);
  o.choice = ScaleChoice::squared;
  return operands(name, 16, o, o, e, e, e, e);
}
// Weights in tiles, whose codes dgrad reads again.
constexpr LinearRecipe tiled(std::string_view name, Element e, int n, ScaleFormat s, int multiple) {
  const OperandSpec b = block(e, n, s), t = tile(e, n, s);
  return operands(name, multiple, b, t, b, again(t), b, b);
}
// Four bits: stochastic gradients, wgrad rotated over the tokens.
constexpr LinearRecipe four_bit(std::string_view name, int n, ScaleFormat s, Element e = Element::e2m1,
                                ScaleChoice choice = ScaleChoice::amax) {
  OperandSpec b = block(e, n, s);
  b.choice = choice;
  return operands(name, n, b, b, sr(b), b, sr(rotated(b)), rotated(b));
}

constexpr SchemeFamily kFp8{"round_scales_to_power_of_2"};
constexpr SchemeFamily kMxfp8{
    "use_2dblock_x use_2dblock_w use_sr_grad scale_mode wgrad_hp output grad_input grad_weight x_hp w_hp dy_hp "
    "lora_rank"};
constexpr SchemeFamily kFp4{
    "use_2dblock_x use_2dblock_w use_hadamard hadamard_width hadamard_signs use_sr_grad use_dge two_level_scaling wgrad_hp output "
    "grad_input grad_weight x_hp w_hp dy_hp lora_rank deosc_step deosc_period deosc_ratio deosc_log_freq",
    "use_2dblock_w=false use_hadamard=true use_sr_grad=true deosc_step=2000"};
constexpr SchemeFamily kNvint4{
    "use_2dblock_x use_2dblock_w use_hadamard hadamard_width hadamard_signs use_sr_grad two_level_scaling wgrad_hp output grad_input "
    "grad_weight x_hp w_hp dy_hp lora_rank",
    "use_2dblock_w=false use_hadamard=true use_sr_grad=true"};
constexpr SchemeFamily kQuartet{
    "hadamard_width wgrad_hp output grad_input grad_weight lora_rank deosc_step deosc_period deosc_ratio deosc_log_freq"};
constexpr SchemeFamily kIntegers{"use_sr_grad stochastic_rounding output grad_input grad_weight"};
constexpr SchemeFamily kStored{.experts = false};
constexpr SchemeFamily kBitnet{.experts = false, .own_norms = true};

constexpr OperandSpec kTensor8 = tensor(Element::e4m3), kTensor5 = tensor(Element::e5m2), kRow8 = rows(Element::e4m3, true);
constexpr OperandSpec kTensor8Pow2{Element::e4m3, Granularity::tensor, 0, ScaleFormat::fp32_pow2};
constexpr OperandSpec kBitnetX = floored(rows(Element::int8), 1e-5f), kBitnetW = tensor(Element::ternary);
constexpr std::array<Scheme::Size, 3> kSmallTensorwise = {{{4096, 1024}}},
                                      kSmallRowwise = {{{INT64_MAX, 2048}, {1024, INT64_MAX}, {2048, 4096}}};

}  // namespace detail

// The table of numerics.md section 7, operands as in preset "recommended". A new scheme is a row here and its tests.
constexpr std::array kLinearRecipes = {
    Scheme{detail::operands("none", 1, {}, {}, {}, {}, {}, {}), "products in the compute dtype"},
    Scheme{detail::operands("fp8_tensorwise", 16, detail::kTensor8, detail::kTensor8, detail::kTensor5, detail::again(detail::kTensor8),
                            detail::again(detail::kTensor5), detail::again(detail::kTensor8), true),
           "8-bit floats, a scale per tensor", &detail::kFp8, "fast_accum", "", "", detail::kSmallTensorwise},
    Scheme{detail::uniform("fp8_rowwise", detail::kRow8, 16, true), "8-bit floats, power-of-two scales of rows", &detail::kFp8,
           "fast_accum wgrad_hp", "", "", detail::kSmallRowwise},
    Scheme{detail::operands("fp8_rowwise_with_gw_hp", 16, detail::kRow8, detail::kRow8, detail::kRow8, detail::kTensor8Pow2, {}, {}, true),
           "fp8_rowwise with weight gradients in the compute dtype", &detail::kFp8, "fast_accum"},
    Scheme{detail::tiled("fp8_blockwise", Element::e4m3, 128, ScaleFormat::fp32, 16), "8-bit floats, blocks of 1x128, weights of 128x128",
           &detail::kFp8, "use_sr_grad"},
    Scheme{detail::tiled("mxfp8_e4m3", Element::e4m3, 32, ScaleFormat::e8m0, 32), "MX blocks of 32 8-bit floats", &detail::kMxfp8},
    Scheme{detail::tiled("mxfp8_e5m2", Element::e5m2, 32, ScaleFormat::e8m0, 32), "mxfp8_e4m3 with e5m2: wider range, fewer digits",
           &detail::kMxfp8},
    Scheme{detail::four_bit("mxfp4", 32, ScaleFormat::e8m0), "MX blocks of 32 4-bit floats", &detail::kFp4,
           "two_level_scaling=blockwise clip_mode use_uos scale_mode"},
    Scheme{detail::four_bit("nvfp4", 16, ScaleFormat::e4m3, Element::e2m1, ScaleChoice::squared), "blocks of 16 4-bit floats, e4m3 scales",
           &detail::kFp4, "two_level_scaling=tensorwise style scale_choice scale_choice_error",
           "two_level_scaling=tensorwise scale_choice=four_over_six",
           "use_2dblock_x=false use_dge=false use_2dblock_w=true wgrad_hp=false output=true grad_input=true grad_weight=true x_hp=false "
           "w_hp=false dy_hp=false use_hadamard=true use_sr_grad=true two_level_scaling=tensorwise"},
    Scheme{detail::four_bit("amdfp4", 16, ScaleFormat::ue5m3, Element::e2m1, ScaleChoice::squared),
           "nvfp4 with ue5m3 scales, of wider range", &detail::kFp4, "two_level_scaling=tensorwise scale_choice scale_choice_error",
           "two_level_scaling=tensorwise scale_choice=four_over_six"},
    Scheme{detail::quartet("quartet2"), "nvfp4 with a choice of two scales, gradients by MS-EDEN", &detail::kQuartet},
    Scheme{detail::tiled("mxint8", Element::int8, 32, ScaleFormat::e8m0, 32), "MX blocks of 32 8-bit integers", &detail::kMxfp8},
    Scheme{detail::four_bit("nvint4", 16, ScaleFormat::e4m3, Element::int4), "blocks of 16 4-bit integers, e4m3 scales", &detail::kNvint4,
           "two_level_scaling=tensorwise", "two_level_scaling=tensorwise"},
    Scheme{detail::uniform("int8", detail::rows(Element::int8), 16), "8-bit integers, scales of rows", &detail::kIntegers},
    Scheme{detail::uniform("int4", detail::rows(Element::int4), 32), "4-bit integers, scales of rows", &detail::kIntegers},
    Scheme{detail::weights_alone("int8_weight", detail::rows(Element::int8), 16), "weights stored as 8-bit integers", &detail::kStored,
           "activation"},
    Scheme{detail::weights_alone("int4_weight", detail::block(Element::uint4, 32, ScaleFormat::fp32), 32),
           "weights stored as 4-bit integers in groups of 32", &detail::kStored},
    Scheme{detail::operands("bitnet", 16, detail::kBitnetX, detail::kBitnetW, {}, detail::again(detail::kBitnetW), {},
                            detail::again(detail::kBitnetX)),
           "ternary weights, activations of 8-bit integers", &detail::kBitnet},
};

constexpr std::optional<Scheme> find_linear_recipe(std::string_view name) {
  for (const Scheme& s : kLinearRecipes) {
    if (s.name == name) return s;
  }
  return std::nullopt;
}

}  // namespace halftone
