#pragma once
#include <cmath>

#include "halftone/fused/adamw.h"

namespace halftone {

// Piece of an optimizer segment, with the coefficients as applied.
struct OptimizerBlock {
  int64_t offset, count;
  float grad_factor, decay;  // decay: lr * wd (adamw) or wd
  float step_size;           // lr / (1 - b1^t), or lr (sgd)
  float denominator_scale;   // 1 / sqrt(1 - b2^t)
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  const uint16_t* noise;  // [count rounded up to 16] draws for stochastic rounding, or null
};

// Block of the full segment: coefficients computed in fp64 and rounded once; grad_factor stays 1 (it may be in device memory), noise null.
inline OptimizerBlock optimizer_coefficients(const OptimizerStep& p, const OptimizerSegment& s) {
  const auto t = static_cast<double>(p.step);
  const bool sgd = p.rule == OptimizerRule::sgd;
  OptimizerBlock b{};
  b.offset = s.offset;
  b.count = s.count;
  b.grad_factor = 1;
  b.decay = static_cast<float>(p.rule == OptimizerRule::adamw ? s.lr * s.weight_decay : s.weight_decay);
  b.step_size = static_cast<float>(sgd ? s.lr : s.lr / (1 - std::pow(p.beta1, t)));
  b.denominator_scale = sgd ? 0 : static_cast<float>(1 / std::sqrt(1 - std::pow(p.beta2, t)));
  b.beta1 = static_cast<float>(p.beta1);
  b.one_minus_beta1 = static_cast<float>(1 - p.beta1);
  b.beta2 = static_cast<float>(p.beta2);
  b.one_minus_beta2 = static_cast<float>(1 - p.beta2);
  b.eps = static_cast<float>(p.eps);
  return b;
}

}  // namespace halftone
