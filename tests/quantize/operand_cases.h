#pragma once
#include <fmt/format.h>

#include <string>

#include "halftone/quantize/check_operand.h"
#include "halftone/quantize/panels.h"
#include "quantize/cases.h"

// Every kind of operand in the recipes, for the tests of the CPU and CUDA quantisers.
namespace halftone::testing {

struct NamedSpec {
  std::string name;
  OperandSpec spec;
  bool rotates = false;
};

inline OperandSpec make_spec(Element e, Granularity g, int block, ScaleFormat scale, ScaleMode mode = ScaleMode::none) {
  OperandSpec s;
  s.element = e, s.granularity = g, s.block = block, s.scale = scale, s.mode = mode;
  return s;
}

inline std::vector<NamedSpec> operand_specs() {
  using E = Element;
  using G = Granularity;
  using S = ScaleFormat;
  using M = ScaleMode;
  std::vector<NamedSpec> out;
  const auto add = [&](std::string name, OperandSpec s, int hadamard = 0) {
    s.hadamard = hadamard;
    out.push_back({std::move(name), s, hadamard != 0});
  };
  for (const E e : {E::e4m3, E::e5m2}) {
    for (const S scale : {S::fp32, S::fp32_pow2}) {
      const auto name = fmt::format("{}{}", e == E::e4m3 ? "e4m3" : "e5m2", scale == S::fp32 ? "" : " pow2");
      add(name + " tensor", make_spec(e, G::tensor, 0, scale));
      add(name + " row", make_spec(e, G::row, 0, scale));
      add(name + " 1x128", make_spec(e, G::block, 128, scale));
      add(name + " 128x128", make_spec(e, G::tile, 128, scale));
    }
  }
  const char* elements[] = {"e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8"};
  const char* modes[] = {"floor", "ceil", "rceil", "even", "adaptive", "uos"};
  for (int i = 0; i < 6; ++i) {
    const E e = static_cast<E>(static_cast<int>(E::e4m3) + i);
    for (int m = 0; m < (e == E::e2m1 ? 6 : 5); ++m) {
      const auto mode = static_cast<M>(static_cast<int>(M::floor) + m);
      for (const G g : {G::block, G::tile}) {
        add(fmt::format("mx {} {} {}", elements[i], modes[m], g == G::tile ? "32x32" : "1x32"), make_spec(e, g, 32, S::e8m0, mode));
      }
    }
  }
  constexpr std::pair<ScaleChoice, const char*> kErrors[] = {
      {ScaleChoice::squared, "squared"}, {ScaleChoice::absolute, "absolute"}, {ScaleChoice::largest, "largest"}};
  for (const G g : {G::block, G::tile}) {
    const char* what = g == G::tile ? "tile" : "block";
    OperandSpec macro = make_spec(E::e2m1, g, 32, S::e8m0, M::adaptive);
    macro.two_level = TwoLevel::macro;
    add(fmt::format("mxfp4 macro {}", what), macro);
    for (const S scale : {S::e4m3, S::ue5m3}) {
      OperandSpec fp4 = make_spec(E::e2m1, g, 16, scale);
      const char* name = scale == S::e4m3 ? "nvfp4" : "amdfp4";
      add(fmt::format("{} alto, no outer scale, {}", name, what), fp4);
      fp4.two_level = TwoLevel::tensor;
      add(fmt::format("{} alto {}", name, what), fp4);
      for (const auto& [choice, error] : kErrors) {
        OperandSpec chosen = fp4;
        chosen.choice = choice;
        add(fmt::format("{} four over six, {}, {}", name, error, what), chosen);
        if (choice != ScaleChoice::squared) continue;
        if (g == G::block) add(fmt::format("{} four over six rotated", name), chosen, 32);
        chosen.two_level = TwoLevel::none;
        add(fmt::format("{} four over six, no outer scale, {}", name, what), chosen);
        chosen.two_level = TwoLevel::tensor, chosen.chain = Fp4Chain::torchao;
        if (scale == S::e4m3) add(fmt::format("nvfp4 four over six torchao {}", what), chosen);
        if (scale == S::e4m3 && g == G::block) add("nvfp4 four over six torchao rotated", chosen, 16);
      }
      if (g == G::block) add(fmt::format("{} alto rotated", name), fp4, 32);
      if (g == G::block) add(fmt::format("{} alto rotated by 64", name), fp4, 64);
      if (scale == S::ue5m3) continue;
      fp4.chain = Fp4Chain::torchao;
      add(fmt::format("{} torchao {}", name, what), fp4);
      if (g == G::block) add(fmt::format("{} torchao rotated", name), fp4, 16);
      if (g == G::tile) continue;
      fp4.chain = Fp4Chain::alto, fp4.eden = true;
      for (const int width : {16, 32, 64, 128}) add(fmt::format("nvfp4 EDEN {}", width), fp4, width);
    }
  }
  for (const G g : {G::block, G::tile}) {
    OperandSpec nvint4 = make_spec(E::int4, g, 16, S::e4m3);
    add(fmt::format("nvint4 no outer scale, {}", g == G::tile ? "tile" : "block"), nvint4);
    nvint4.two_level = TwoLevel::tensor;
    add(fmt::format("nvint4 {}", g == G::tile ? "tile" : "block"), nvint4);
    if (g == G::block) add("nvint4 rotated", nvint4, 32);
  }
  OperandSpec mxfp4 = make_spec(E::e2m1, G::block, 32, S::e8m0, M::adaptive);
  add("mxfp4 rotated", mxfp4, 32);
  add("mxfp4 rotated by 128", mxfp4, 128);
  OperandSpec macro = mxfp4;
  macro.two_level = TwoLevel::macro;
  add("mxfp4 macro rotated", macro, 32);
  mxfp4.clip = Clip::fixed;
  add("mxfp4 static clip", mxfp4);
  mxfp4.clip = Clip::dynamic;
  add("mxfp4 dynamic clip", mxfp4);
  add("mxfp4 dynamic clip rotated", mxfp4, 32);
  add("int8 row", make_spec(E::int8, G::row, 0, S::fp32));
  add("int8 tensor", make_spec(E::int8, G::tensor, 0, S::fp32));
  OperandSpec bitnet = make_spec(E::int8, G::row, 0, S::fp32);
  bitnet.scale_floor = 1e-5f;
  add("int8 row, bitnet", bitnet);
  add("int4 row", make_spec(E::int4, G::row, 0, S::fp32));
  add("int4 tensor", make_spec(E::int4, G::tensor, 0, S::fp32));
  add("uint4 1x32", make_spec(E::uint4, G::block, 32, S::fp32));
  add("uint4 1x32 bf16", make_spec(E::uint4, G::block, 32, S::bf16));
  add("ternary", make_spec(E::ternary, G::tensor, 0, S::fp32));
  return out;
}

// Value forms that a spec supports.
inline std::vector<ValueForm> value_forms(const OperandSpec& s) {
  std::vector<ValueForm> out = {ValueForm::none, ValueForm::bf16, ValueForm::f32};
  if (s.element == Element::e2m1 && s.scale == ScaleFormat::e8m0) {
    out.push_back(ValueForm::fold_e4m3);
    if (s.two_level == TwoLevel::none) out.push_back(ValueForm::fold_e5m2);
  }
  return out;
}
inline int64_t form_bytes(ValueForm f) { return f == ValueForm::none ? 0 : f == ValueForm::bf16 ? 2 : f == ValueForm::f32 ? 4 : 1; }

// Memory for all outputs of a copy [R, C], or of one of a matrix with row groups.
struct CopyBuffers {
  CopyBuffers(QuantizedCopy& copy, int64_t R, int64_t contracted, int64_t row_groups = 1, bool by_column = false)
      : C(operand_length(copy, contracted)),
        block(block_shape(copy.spec, R, C)),
        groups(copy.spec.granularity == Granularity::tensor ? row_groups
               : copy.spec.granularity == Granularity::row  ? R * (by_column ? row_groups : 1)
                                                            : groups_of(R, C, block.rows, block.cols)),
        scale_bytes(has_byte_scales(copy.spec.scale) ? 1 : 4),
        codes(R * C),
        packed(bits_of(copy.spec.element) < 8 && C % packed_group(copy.spec.element) == 0 ? packed_bytes(copy.spec.element, R * C) : 0),
        scales(groups * scale_bytes),
        zeros(copy.spec.element == Element::uint4 ? groups * 4 : 0),
        outer(row_groups * 4),
        macro(copy.spec.two_level == TwoLevel::macro ? groups_of(R, C, copy.spec.granularity == Granularity::tile ? 128 : 1, 128) : 0),
        values(R * C * form_bytes(copy.form)),
        fold_scale(copy.form == ValueForm::fold_e4m3   ? R * 4 * (by_column ? row_groups : 1)
                   : copy.form == ValueForm::fold_e5m2 ? row_groups * 4
                                                       : 0),
        lost(8) {
    *lost.as<unsigned long long>() = 3;  // counters accumulate
    attach(copy);
  }
  static int64_t groups_of(int64_t R, int64_t C, int64_t rows, int64_t cols) { return ceil_div(R, rows) * ceil_div(C, cols); }
  void attach(QuantizedCopy& c) {
    c.codes = codes.as<uint8_t>(), c.scales = scales.data(), c.outer = outer.as<float>(), c.lost = lost.as<unsigned long long>();
    c.packed = packed.size() > 0 ? packed.as<uint8_t>() : nullptr, c.zeros = zeros.size() > 0 ? zeros.as<float>() : nullptr;
    c.macro = macro.size() > 0 ? macro.as<uint8_t>() : nullptr, c.values = c.form == ValueForm::none ? nullptr : values.data();
    c.fold_scale = is_fold(c.form) ? fold_scale.as<float>() : nullptr;
  }
  std::vector<std::pair<const char*, Buffer*>> all() {
    return {{"codes", &codes}, {"packed", &packed}, {"scales", &scales},         {"zeros", &zeros}, {"outer", &outer},
            {"macro", &macro}, {"values", &values}, {"fold_scale", &fold_scale}, {"lost", &lost}};
  }
  int64_t C;
  BlockShape block;
  int64_t groups, scale_bytes;
  Buffer codes, packed, scales, zeros, outer, macro, values, fold_scale, lost;
};

}  // namespace halftone::testing
