#pragma once
#include <bit>
#include <cstdint>

namespace halftone {

// Differentiable gradient estimator of the e2m1 weight quantiser, k = 5 (numerics.md section 6).

// Interval of the grid 0 .5 1 1.5 2 3 4 6 that contains |v|: its midpoint and half width. A grid point belongs to the interval below (both
// give the same factor); values above 6 use the last interval.
struct DgeInterval {
  float middle, half;
};
constexpr DgeInterval dge_interval(float magnitude) {
  if (magnitude > 4) return {5, 1};
  if (magnitude > 2) return {magnitude > 3 ? 3.5f : 2.5f, 0.5f};
  const float low = magnitude > 1.5f ? 1.5f : magnitude > 1 ? 1.0f : magnitude > 0.5f ? 0.5f : 0.0f;
  return {low + 0.25f, 0.25f};
}

// r^(-1/5) of a positive normal r: initial guess from the exponent, then division-free Newton steps; bit-identical on every processor.
constexpr float inverse_fifth_root(float r) {
  float y = std::bit_cast<float>(0x4C2D8000u - std::bit_cast<uint32_t>(r) / 5);
  for (int i = 0; i < 4; ++i) {
    const float y2 = y * y, y5 = y2 * y2 * y;
    y = y * (1.2f - 0.2f * (r * y5));
  }
  return y;
}

// f'(v) = clamp((d/2)^(4/5) |v - m|^(-4/5) / 5, 0, 3); v = w * inv_scale of the forward quantisation, before rounding. dW is multiplied by
// f'. NaN stays NaN.
constexpr float dge_factor(float v) {
  const float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0x7FFFFFFFu);
  const DgeInterval interval = dge_interval(magnitude);
  const float away = magnitude - interval.middle, distance = away < 0 ? -away : away;
  if (distance * 30 <= interval.half) return 3;  // clamped: the clamp is active for r >= 29.52
  if (!(distance < 1e30f)) return distance != distance ? v : 0.0f;
  const float r = interval.half / distance;
  const float f = r * inverse_fifth_root(r) * 0.2f;
  return f < 3 ? f : 3.0f;
}

}  // namespace halftone
