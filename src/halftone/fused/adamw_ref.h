#pragma once
#include <cmath>

#include "halftone/fused/adamw.h"

namespace halftone {

// State of one element, in fp64.
struct OptimizerElement {
  double p, m, v;
};
inline OptimizerElement optimizer_step_ref(OptimizerRule rule, OptimizerElement x, double g, double lr, double wd, double beta1,
                                           double beta2, double eps, int64_t step) {
  if (rule == OptimizerRule::adamw) {
    x.p -= lr * wd * x.p;
  } else {
    g += wd * x.p;
  }
  if (rule == OptimizerRule::sgd) {
    x.m = beta1 * x.m + g;
    x.p -= lr * x.m;
    return x;
  }
  x.m = beta1 * x.m + (1 - beta1) * g;
  x.v = beta2 * x.v + (1 - beta2) * g * g;
  const double t = static_cast<double>(step);
  x.p -= lr * (x.m / (1 - std::pow(beta1, t))) / (std::sqrt(x.v) / std::sqrt(1 - std::pow(beta2, t)) + eps);
  return x;
}

// "bf16 from fp32" of numerics.md section 4, L = 16; i is the element's index in the unsharded parameter.
inline bf16 round_stochastic_ref(float x, PhiloxKey key, uint64_t i, uint32_t step) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), word = philox(key, i >> 3, step)[(i & 7) >> 1];
  const uint32_t u = i & 1 ? word >> 16 : word & 0xFFFF;
  const bool special = (bits & 0x7F800000u) == 0x7F800000u;
  const bool up = !special && u + 0.5 < (bits & 0xFFFF) / 65536.0 * 65536.0;
  bf16 result;
  result.bits = static_cast<uint16_t>((bits + (up ? 0x10000u : 0)) >> 16);
  return result;
}

}  // namespace halftone
