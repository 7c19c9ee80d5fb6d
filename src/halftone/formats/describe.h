#pragma once
#include <string>

#include "halftone/formats/names.h"

namespace halftone {

// Parts of describe(): scale granularity, scale format and mode, transforms and rounding.
inline std::string group_text(const OperandSpec& s) {
  const std::string block = std::to_string(s.block);
  switch (s.granularity) {
    case Granularity::tensor:
      return "tensor";
    case Granularity::row:
      return "row";
    case Granularity::block:
      return "1x" + block;
    case Granularity::tile:
      return block + "x" + block;
    case Granularity::none:
      break;
  }
  return "";
}

inline std::string scale_text(const OperandSpec& s) {
  std::string out;
  const auto add = [&](std::string_view word) { out.append(out.empty() ? "" : " ").append(word); };
  if (s.scale == ScaleFormat::fp32_pow2) add("p2");
  if (s.scale == ScaleFormat::e8m0) add("e8m0");
  if (s.scale == ScaleFormat::e4m3) add("e4m3");
  if (s.scale == ScaleFormat::ue5m3) add("ue5m3");
  if (s.mode != ScaleMode::none) add(name_of(kScaleModeNames, s.mode));
  if (s.two_level != TwoLevel::none) add(s.two_level == TwoLevel::tensor ? "outer" : "macro");
  if (s.chain == Fp4Chain::torchao) add("torchao");
  if (s.choice != ScaleChoice::amax) add("4/6"), add(name_of(kScaleChoiceNames, s.choice));
  return out;
}

inline std::string rounding_text(const OperandSpec& s) {
  std::string out;
  if (s.clip != Clip::none) out += s.clip == Clip::fixed ? " clip-3/4" : " clip-sigma";
  if (s.hadamard > 0) out += " H" + std::to_string(s.hadamard);
  if (s.hadamard > 0 && s.signs == Signs::deterministic) out += " unsigned";
  if (s.stochastic) out += " SR";
  if (s.eden) out += " EDEN";
  if (s.stored) out += " stored";
  return out;
}

// "e2m1 1x32 e8m0 adaptive H32 SR": one operand of a recipe; "bf16" if unquantised.
inline std::string describe(const OperandSpec& s) {
  if (!s.quantized()) return "bf16";
  const std::string scale = scale_text(s);
  return std::string(name_of(kElementNames, s.element)) + " " + group_text(s) + (scale.empty() ? "" : " ") + scale + rounding_text(s);
}

}  // namespace halftone
