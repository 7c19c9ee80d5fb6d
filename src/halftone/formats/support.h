#pragma once
#include <array>
#include <string_view>

#include "halftone/formats/recipe.h"

namespace halftone {

// How each GEMM of a recipe runs on each kind of hardware, and why. This is the only table: `halftone formats --support` prints it, a run
// reads it at start (apply_recipes), and GEMM dispatch on GPUs uses it (ops/product_cuda.cpp), so no fallback is silent. GPUs need
// halftone_cuda.so built for them; otherwise they are rejected (select_device).
enum class Hardware { cpu_v3, cpu_avxvnni, cpu_avx512, cpu_vnni, cpu_amx, sm_80, sm_89, sm_90, sm_100, sm_120 };

struct HardwareRow {
  Hardware hardware;
  std::string_view name, meaning;
};
constexpr std::array<HardwareRow, 10> kHardware = {{
    {Hardware::cpu_v3, "cpu-v3", "x86-64-v3: AVX2"},
    {Hardware::cpu_avxvnni, "cpu-avxvnni", "AVX2 with AVX-VNNI"},
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

// native: dedicated units consume the codes. rewrite: other units compute the same sum of the same products, because every operand is exact
// in their format (numerics.md 7.1). emulated: fp32 GEMM of dequantised operands.
enum class How { native, rewrite, emulated };
constexpr std::string_view name(How how) { return how == How::native ? "native" : how == How::rewrite ? "rewrite" : "emulated"; }

// Input of the GEMM units:
//   plain        unquantised operands
//   int8         codes as bytes           fp8     codes as they are
//   folded       mxfp4 codes with their block scales folded into e4m3 codes (ValueForm::fold_e4m3, fold_e5m2)
//   values       codes times block scales, exact in bf16 (ValueForm::bf16); outer factors are applied in fp32
//   dequantized  fully scaled fp32 values: the reference
enum class Path { plain, int8, fp8, folded, values, dequantized };

struct Support {
  How how = How::native;
  Path path = Path::plain;
  std::string_view reason;
};

// Elements with signed integer codes, and operands of them whose GEMMs run on int8 codes: those without block scales.
constexpr bool is_integer(Element e) { return e == Element::int8 || e == Element::int4 || e == Element::ternary; }
constexpr bool is_integer(const OperandSpec& s) {
  return is_integer(s.element) && s.granularity != Granularity::block && s.granularity != Granularity::tile;
}

namespace detail {

constexpr bool has_fp32_scale(const OperandSpec& s) { return s.scale == ScaleFormat::fp32 || s.scale == ScaleFormat::fp32_pow2; }
// Scales per 128 elements along the contraction, which no epilogue can apply.
constexpr bool scales_128(const OperandSpec& s) { return (has_fp32_scale(s) && s.block == 128) || s.two_level == TwoLevel::macro; }

constexpr Support kEmulated128{How::emulated, Path::dequantized,
                               "only sm_90 scales sums of 128 in its products: operands are dequantised to fp32"};

constexpr Support plain_support(Hardware h) {
  if (h < Hardware::cpu_vnni) {
    return {How::rewrite, Path::plain, "unquantised: bf16 without instructions of its own is widened to fp32, which is exact"};
  }
  return {How::native, Path::plain, "unquantised: the product of the compute dtype"};
}

constexpr Support integer_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  if (h == Hardware::cpu_v3 || h == Hardware::cpu_avx512) {
    return {How::rewrite, Path::int8, "no int8 dot product: products of int8 codes fit int16 in pairs, int32 sums are exact"};
  }
  if (a.element == Element::int8 && b.element == Element::int8) {
    return {How::native, Path::int8, "int8 units, int32 sums, scales in the epilogue"};
  }
  return {How::rewrite, Path::int8, "no units for these codes, which are int8 values: int32 sums are exact"};
}

constexpr Support fp8_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  if (scales_128(a) || scales_128(b)) {
    if (h == Hardware::sm_90 && a.element == Element::e5m2 && b.element == Element::e5m2) {
      return {How::emulated, Path::dequantized,
              "cuBLASLt scales sums of 128 only where an operand is e4m3: operands are dequantised to fp32"};
    }
    if (h == Hardware::sm_90) return {How::native, Path::fp8, "fp8 units, cuBLASLt scales the sums of 128 in fp32"};
    return is_cpu(h) ? Support{How::rewrite, Path::values, "codes are exact in bf16, the sums of 128 are scaled in fp32"} : kEmulated128;
  }
  if (is_cpu(h) || h == Hardware::sm_80)
    return {How::rewrite, Path::values, "no fp8 units: codes are exact in bf16, scales follow in fp32"};
  if (a.granularity == Granularity::tensor && b.granularity == Granularity::tensor) {
    return {How::native, Path::fp8, "fp8 units, scales in the epilogue"};
  }
  if (h == Hardware::sm_90) return {How::native, Path::fp8, "fp8 units, cuBLASLt scales rows and columns"};
  return {How::rewrite, Path::values, "cuBLASLt scales rows on sm_90 only: codes are exact in bf16, scales follow in fp32"};
}

// mxfp8, mxfp4, nvfp4, amdfp4: byte scales for blocks of 16 or 32.
constexpr Support block_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  const bool macro = scales_128(a) || scales_128(b);
  const bool mxfp4 =
      a.element == Element::e2m1 && b.element == Element::e2m1 && a.scale == ScaleFormat::e8m0 && b.scale == ScaleFormat::e8m0;
  if (mxfp4 && h == Hardware::sm_90) {
    return {How::rewrite, Path::folded,
            macro ? "no fp4 units: block scales folded into e4m3 codes (exact within 14 binades of a row, what lies below loses bits), "
                    "cuBLASLt scales the sums of 128 in fp32"
                  : "no fp4 units: block scales folded into e4m3 codes (exact within 14 binades of a row, what lies below loses bits)"};
  }
  if (macro && !is_cpu(h)) return kEmulated128;
  if (macro) return {How::rewrite, Path::values, "code * block scale is exact in bf16, the sums of 128 are scaled in fp32"};
  if (h == Hardware::sm_100 || h == Hardware::sm_120) {
    return {How::rewrite, Path::values, "its block-scaled units are not used in this build: code * block scale is exact in bf16"};
  }
  return {How::rewrite, Path::values, "no block-scaled units: code * block scale is exact in bf16, factors outside follow in fp32"};
}

// One operand is unquantised.
constexpr Support mixed_support(const OperandSpec& q, Hardware h) {
  if (scales_128(q) && !is_cpu(h)) {
    return {How::emulated, Path::dequantized, "sums of 128 are scaled in products of codes only: operands are dequantised to fp32"};
  }
  if (q.same_as_forward && q.granularity == Granularity::row) {
    return {How::rewrite, Path::plain, "specified on the dequantised forward codes in the compute dtype, times the unquantised operand"};
  }
  if (q.element == Element::uint4) {
    return {How::rewrite, Path::values, "specified on zero + code * scale in the compute dtype, times the unquantised operand"};
  }
  return {How::rewrite, Path::values, "codes are exact in the compute dtype of the other operand, scales follow in fp32"};
}

}  // namespace detail

// Support of a GEMM of operands a and b.
constexpr Support product_support(const OperandSpec& a, const OperandSpec& b, Hardware h) {
  if (!a.quantized() && !b.quantized()) return detail::plain_support(h);
  if (!a.quantized() || !b.quantized()) return detail::mixed_support(a.quantized() ? a : b, h);
  if (is_integer(a) && is_integer(b)) return detail::integer_support(a, b, h);
  if (detail::has_fp32_scale(a) && detail::has_fp32_scale(b)) return detail::fp8_support(a, b, h);
  return detail::block_support(a, b, h);
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
    constexpr Support kAsked{How::emulated, Path::dequantized, "asked for by quantize.emulate: fp32 products of dequantised operands"};
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
