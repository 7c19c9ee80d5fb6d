#pragma once
#include "halftone/formats/int_scale.h"
#include "halftone/formats/recipe.h"
#include "halftone/fused/step_outcome.h"
#include "halftone/quantize/stochastic.h"

namespace halftone {

// Quantises a weight with fresh scales (numerics.md 3.7, int8_weight and int4_weight): to nearest, or stochastically with one draw of L =
// 32 bits per element (section 4). Separate from the operand quantisers, which draw 16 bits.
struct StoreWeight {
  const float* w = nullptr;  // [n, k], contiguous
  int64_t n = 0, k = 0;
  Element element = Element::int8;  // int8: one scale per row; uint4: scale and zero point per `group` of k
  int group = 32;
  Rounding rounding{};
  uint8_t* codes = nullptr;              // int8 [n, k], or uint4 two per byte [n, k / 2]
  float* scales = nullptr;               // [n], or [n, k / group]
  float* zeros = nullptr;                // uint4
  const StepOutcome* outcome = nullptr;  // null, or of the step that changed w: nothing is written if it did not update
};
void store_weight(const StoreWeight& p);

// Code of element (row, column) from y = (w - zero) * inv.
constexpr uint8_t stored_code(const StoreWeight& p, float y, int64_t row, int64_t column) {
  const Int f = p.element == Element::int8 ? Int::int8 : Int::uint4;
  if (!p.rounding.stochastic) return static_cast<uint8_t>(encode(f, y));
  return static_cast<uint8_t>(encode_sr32(f, y, sr_bits32(p.rounding, p.rounding.index(row, column, p.k))));
}

// Quantises one group of a uint4 weight.
constexpr void store_uint4_group(const StoreWeight& p, int64_t row, int64_t g) {
  const int64_t first = g * p.group, at = row * (p.k / p.group) + g;
  const float* x = p.w + row * p.k + first;
  uint32_t amax = 0;
  float low = x[0], high = x[0];
  for (int j = 0; j < p.group; ++j) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[j]) & 0x7FFFFFFFu;
    amax = magnitude > amax ? magnitude : amax;
    if (order_key(x[j]) < order_key(low)) low = x[j];
    if (order_key(x[j]) > order_key(high)) high = x[j];
  }
  // fp32 scale and zero. Rounded outwards to bf16, a group's range would grow by half an ulp per step however small the update, and the
  // draws of a moving grid turn the weights into noise (numerics.md 3.7).
  const AffineScale s = uint4_scale(amax, low, high, false);
  p.scales[at] = s.scale, p.zeros[at] = s.zero;
  uint8_t* out = p.codes + (row * p.k + first) / 2;
  for (int j = 0; j < p.group; j += 2) {
    const uint8_t even = stored_code(p, (x[j] - s.zero) * s.inv, row, first + j);
    const uint8_t odd = stored_code(p, (x[j + 1] - s.zero) * s.inv, row, first + j + 1);
    out[j / 2] = static_cast<uint8_t>(even | odd << 4);
  }
}

}  // namespace halftone
