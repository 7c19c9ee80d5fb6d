#pragma once
#include <array>
#include <string_view>

#include "halftone/formats/recipe.h"

namespace halftone {

// How each product of a recipe runs on each kind of hardware, and why: the one table that `halftone formats --support`
// prints and that a run consults (apply_recipes), so that nothing falls back without a word.
enum class Hardware { cpu_v3, cpu_avx512, cpu_vnni, cpu_amx, sm_80, sm_89, sm_90, sm_100, sm_120 };

struct HardwareRow {
  Hardware hardware;
  std::string_view name, meaning;
};
constexpr std::array<HardwareRow, 9> kHardware = {{
    {Hardware::cpu_v3, "cpu-v3", "x86-64-v3: AVX2"},
    {Hardware::cpu_avx512, "cpu-avx512", "AVX-512"},
    {Hardware::cpu_vnni, "cpu-vnni", "AVX-512 with VNNI and BF16"},
    {Hardware::cpu_amx, "cpu-amx", "AMX-INT8 and AMX-BF16"},
    {Hardware::sm_80, "sm_80", "Ampere: A100 (and 8.6, 8.7)"},
    {Hardware::sm_89, "sm_89", "Ada: L40S, RTX 40"},
    {Hardware::sm_90, "sm_90", "Hopper: H100, H200"},
    {Hardware::sm_100, "sm_100", "Blackwell: B200, GB200"},
    {Hardware::sm_120, "sm_120", "Blackwell: RTX 50"},
}};
constexpr std::string_view name(Hardware h) { return kHardware[static_cast<size_t>(h)].name; }
constexpr bool is_cpu(Hardware h) { return h <= Hardware::cpu_amx; }

// native: the codes themselves go through units made for them. rewrite: other units compute the same sum of the same
// products, because every operand is exact in their format (numerics.md 7.1). emulated: fp32 products of dequantised operands.
enum class How { native, rewrite, emulated };
constexpr std::string_view name(How how) { return how == How::native ? "native" : how == How::rewrite ? "rewrite" : "emulated"; }

struct Support {
  How how = How::native;
  std::string_view reason;
};

namespace detail {

constexpr bool is_integer(const OperandSpec& s) {
  return s.element == Element::int8 || s.element == Element::int4 || s.element == Element::ternary;
}
constexpr bool is_fp8(const OperandSpec& s) { return s.element == Element::e4m3 || s.element == Element::e5m2; }
constexpr bool has_fp32_scale(const OperandSpec& s) { return s.scale == ScaleFormat::fp32 || s.scale == ScaleFormat::fp32_pow2; }
constexpr bool in_128_blocks(const OperandSpec& s) { return has_fp32_scale(s) && s.block == 128; }
// Elements whose code times block scale is exact in bf16; the factors outside (row, tensor, outer, macro) follow in fp32.
constexpr bool exact_in_bf16(const OperandSpec& s) { return s.element != Element::uint4; }

constexpr Support hp_support(Hardware h) {
  if (h == Hardware::cpu_v3 || h == Hardware::cpu_avx512) {
    return {How::rewrite, "unquantised: bf16 without instructions of its own is widened to fp32, which is exact"};
  }
  return {How::native, "unquantised: the product of the compute dtype"};
}

constexpr Support integer_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  if (h == Hardware::cpu_v3 || h == Hardware::cpu_avx512) {
    return {How::rewrite, "no int8 dot product: products of int8 codes fit int16 in pairs, int32 sums are exact"};
  }
  if (a.element == Element::int8 && b.element == Element::int8) return {How::native, "int8 units, int32 sums, scales in the epilogue"};
  return {How::rewrite, "no int4 units: codes are int8 values, int32 sums are exact"};
}

constexpr Support fp8_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  constexpr Support kBf16{How::rewrite, "no fp8 units: codes are exact in bf16, scales follow in fp32"};
  constexpr Support kBlocks{How::rewrite, "codes are exact in bf16, the sums of 128 are scaled in fp32"};
  if (in_128_blocks(a) || in_128_blocks(b)) {
    return h == Hardware::sm_90 ? Support{How::native, "fp8 units, cuBLASLt scales the sums of 128"} : kBlocks;
  }
  if (is_cpu(h) || h == Hardware::sm_80) return kBf16;
  if (a.granularity == Granularity::tensor && b.granularity == Granularity::tensor)
    return {How::native, "fp8 units, scales in the epilogue"};
  if (h == Hardware::sm_90) return {How::native, "fp8 units, cuBLASLt scales rows and columns"};
  return {How::rewrite, "cuBLASLt scales rows on sm_90 only: codes are exact in bf16, scales follow in fp32"};
}

}  // namespace detail

// One product of operands a and b.
constexpr Support product_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  if (!a.quantized() && !b.quantized()) return detail::hp_support(h);
  if (detail::is_integer(a) && detail::is_integer(b)) return detail::integer_support(a, b, h);
  if (!a.quantized() || !b.quantized()) {
    const OperandSpec& q = a.quantized() ? a : b;
    if (q.same_as_forward && q.granularity == Granularity::row) {
      return {How::rewrite, "specified on the dequantised forward codes in the compute dtype, times the unquantised operand"};
    }
    if (!detail::exact_in_bf16(a) || !detail::exact_in_bf16(b)) {
      return {How::rewrite, "specified on zero + code * scale in the compute dtype, times the unquantised operand"};
    }
    return {How::rewrite, "codes are exact in the compute dtype of the other operand, scales follow in fp32"};
  }
  if (detail::is_fp8(a) && detail::is_fp8(b) && detail::has_fp32_scale(a) && detail::has_fp32_scale(b)) return detail::fp8_support(a, b, h);
  const bool folds = a.element == Element::e2m1 && b.element == Element::e2m1 && a.scale == ScaleFormat::e8m0 &&
                     b.scale == ScaleFormat::e8m0 && a.two_level == TwoLevel::none && b.two_level == TwoLevel::none;
  if (folds && h == Hardware::sm_90) {
    return {How::rewrite, "no fp4 units: block scales folded into e4m3 codes (exact within 14 binades of a row, losses counted)"};
  }
  if (h == Hardware::sm_100 || h == Hardware::sm_120) {
    return {How::rewrite, "its block-scaled units are not used in this build: code * block scale is exact in bf16"};
  }
  return {How::rewrite, "no block-scaled units: code * block scale is exact in bf16, factors outside follow in fp32"};
}

struct RecipeSupport {
  Support forward, dgrad, wgrad;
  constexpr const Support& worst() const {
    const Support& first = forward.how >= dgrad.how ? forward : dgrad;
    return first.how >= wgrad.how ? first : wgrad;
  }
};
constexpr RecipeSupport recipe_support(const LinearRecipe& r, Hardware h) {
  if (r.emulate) {
    constexpr Support kAsked{How::emulated, "asked for by quantize.emulate: fp32 products of dequantised operands"};
    return {kAsked, kAsked, kAsked};
  }
  return {product_support(r.x_forward, r.w_forward, h), product_support(r.dy_dgrad, r.w_dgrad, h),
          product_support(r.dy_wgrad, r.x_wgrad, h)};
}

namespace detail {
constexpr How how(std::string_view recipe, Hardware h) { return recipe_support(*find_linear_recipe(recipe), h).worst().how; }
constexpr bool ordered() {
  for (size_t i = 0; i < kHardware.size(); ++i) {
    if (kHardware[i].hardware != static_cast<Hardware>(i)) return false;
  }
  return true;
}
}  // namespace detail
static_assert(detail::ordered());
static_assert(detail::how("int8", Hardware::cpu_vnni) == How::native && detail::how("int8", Hardware::cpu_v3) == How::rewrite);
static_assert(detail::how("fp8_rowwise", Hardware::sm_90) == How::native && detail::how("fp8_rowwise", Hardware::sm_80) == How::rewrite);

}  // namespace halftone
