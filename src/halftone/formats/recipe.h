#pragma once
#include <algorithm>
#include <array>
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
// The two evaluation orders of NVFP4 scales (3.4).
enum class Fp4Chain { alto, torchao };
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
  int hadamard = 0;              // width of the Hadamard transform along tokens before quantisation (section 5): 0, 16 or 32
  bool stochastic = false;       // stochastic rounding, numerics.md section 4
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
      return w.two_level == TwoLevel::macro ? 128 : w.block;
    };
    return std::max({rows(w_forward, false), rows(w_dgrad, true), 1});
  }
  bool operator==(const LinearRecipe&) const = default;
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
constexpr OperandSpec again(OperandSpec o) {
  o.same_as_forward = true;
  return o;
}
constexpr OperandSpec rotated(OperandSpec o) {
  o.hadamard = 32;
  return o;
}
constexpr OperandSpec floored(OperandSpec o, float scale_floor) {
  o.scale_floor = scale_floor;
  return o;
}
constexpr OperandSpec sr(OperandSpec o) {
  o.stochastic = true;
  return o;
}
constexpr OperandSpec stored(OperandSpec o) {
  o.stored = true;
  return o;
}

constexpr LinearRecipe mx(std::string_view name, Element e) {
  const OperandSpec b = block(e, 32, ScaleFormat::e8m0), t = tile(e, 32, ScaleFormat::e8m0);
  return {name, b, t, b, again(t), b, b, {}, 32};
}
constexpr LinearRecipe fp4(std::string_view name, int n, ScaleFormat s, int multiple) {
  const OperandSpec b = block(Element::e2m1, n, s), t = tile(Element::e2m1, n, s);
  return {name, b, t, sr(b), again(t), sr(rotated(b)), rotated(b), {}, multiple};
}

}  // namespace detail

// Recipe table of numerics.md section 7; 4-bit floats use the options of column "FP4 recipes" of 7.3.
constexpr std::array kLinearRecipes = {
    LinearRecipe{"none", {}, {}, {}, {}, {}, {}, {}, 1},
    LinearRecipe{"fp8_tensorwise",
                 detail::tensor(Element::e4m3),
                 detail::tensor(Element::e4m3),
                 detail::tensor(Element::e5m2),
                 detail::again(detail::tensor(Element::e4m3)),
                 detail::again(detail::tensor(Element::e5m2)),
                 detail::again(detail::tensor(Element::e4m3)),
                 {true, false, false},
                 16},
    LinearRecipe{"fp8_rowwise",
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 {true, false, false},
                 16},
    LinearRecipe{"fp8_rowwise_with_gw_hp",
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 detail::rows(Element::e4m3, true),
                 {Element::e4m3, Granularity::tensor, 0, ScaleFormat::fp32_pow2},
                 {},
                 {},
                 {true, false, false},
                 16},
    LinearRecipe{"fp8_blockwise",
                 detail::block(Element::e4m3, 128, ScaleFormat::fp32),
                 detail::tile(Element::e4m3, 128, ScaleFormat::fp32),
                 detail::block(Element::e4m3, 128, ScaleFormat::fp32),
                 detail::again(detail::tile(Element::e4m3, 128, ScaleFormat::fp32)),
                 detail::block(Element::e4m3, 128, ScaleFormat::fp32),
                 detail::block(Element::e4m3, 128, ScaleFormat::fp32),
                 {},
                 16},
    detail::mx("mxfp8_e4m3", Element::e4m3),
    detail::mx("mxfp8_e5m2", Element::e5m2),
    detail::fp4("mxfp4", 32, ScaleFormat::e8m0, 32),
    detail::fp4("nvfp4", 16, ScaleFormat::e4m3, 16),
    detail::fp4("amdfp4", 16, ScaleFormat::ue5m3, 16),
    LinearRecipe{"int8",
                 detail::rows(Element::int8),
                 detail::rows(Element::int8),
                 detail::rows(Element::int8),
                 detail::rows(Element::int8),
                 detail::rows(Element::int8),
                 detail::rows(Element::int8),
                 {},
                 16},
    LinearRecipe{"int4",
                 detail::rows(Element::int4),
                 detail::rows(Element::int4),
                 detail::rows(Element::int4),
                 detail::rows(Element::int4),
                 detail::rows(Element::int4),
                 detail::rows(Element::int4),
                 {},
                 32},
    LinearRecipe{
        "int8_weight", {}, detail::stored(detail::rows(Element::int8)), {}, detail::stored(detail::rows(Element::int8)), {}, {}, {}, 16},
    LinearRecipe{"int4_weight",
                 {},
                 detail::stored(detail::block(Element::uint4, 32, ScaleFormat::fp32)),
                 {},
                 detail::stored(detail::block(Element::uint4, 32, ScaleFormat::fp32)),
                 {},
                 {},
                 {},
                 32},
    LinearRecipe{"bitnet",
                 detail::floored(detail::rows(Element::int8), 1e-5f),
                 detail::tensor(Element::ternary),
                 {},
                 detail::again(detail::tensor(Element::ternary)),
                 {},
                 detail::again(detail::floored(detail::rows(Element::int8), 1e-5f)),
                 {},
                 16},
};

constexpr std::optional<LinearRecipe> find_linear_recipe(std::string_view name) {
  for (const LinearRecipe& r : kLinearRecipes) {
    if (r.name == name) return r;
  }
  return std::nullopt;
}

}  // namespace halftone
