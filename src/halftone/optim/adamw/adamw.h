#pragma once
#include "halftone/optim/rule.h"

namespace halftone::optim {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;

  static void fields(auto& self, auto&& field) {
    field("beta1", self.beta1, "decay rate of the first moment", {.min = 0});
    field("beta2", self.beta2, "decay rate of the second moment", {.min = 0});
    field("eps", self.eps, "added to the square root of the second moment", {.min = 0});
  }
};

// numerics.md 10.2: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * (m / (1-b1^t)) / (sqrt(v) / sqrt(1-b2^t) + eps), with the new,
// unrounded m and v. AdamW decays first: p -= lr * wd * p; Adam adds to the gradient: g += wd * p.
template <bool kDecoupled>
struct Adaptive {
  using Options = AdamOptions;
  static constexpr std::string_view kName = kDecoupled ? "AdamW" : "Adam";
  static constexpr std::array kStates = {State{kFirstMoment}, State{kSecondMoment}};
  static constexpr bool kDecoupledDecay = kDecoupled;

  static size_t states(const Options&) { return kStates.size(); }

  static void check(const Options& o, auto&& require) {
    require(o.beta1 < 1, "beta1", o.beta1, "below 1", "");
    require(o.beta2 < 1, "beta2", o.beta2, "below 1", "");
    require(static_cast<float>(o.eps) > 0, "eps", o.eps, "above 0 in float32", ": the update of an element with gradient 0 would be 0 / 0");
  }

  float decay, step_size;   // lr * wd or wd; lr / (1 - b1^t)
  float denominator_scale;  // 1 / sqrt(1 - b2^t)
  float beta1, rest1, beta2, rest2, eps;

  HALFTONE_RULE static Adaptive at(const Options& o, double lr, double weight_decay, double t) {
    return {static_cast<float>(kDecoupled ? lr * weight_decay : weight_decay),
            static_cast<float>(lr / (1 - std::pow(o.beta1, t))),
            static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
            static_cast<float>(o.beta1),
            static_cast<float>(1 - o.beta1),
            static_cast<float>(o.beta2),
            static_cast<float>(1 - o.beta2),
            static_cast<float>(o.eps)};
  }

  template <class V>
  HALFTONE_RULE void update(V& p, V g, V (&s)[2]) const {
    if constexpr (kDecoupled) {
      p = neg_fma(decay, p, p);
    } else {
      g = fma(decay, p, g);
    }
    s[0] = fma(beta1, s[0], rest1 * g);
    s[1] = fma(beta2, s[1], rest2 * g * g);
    p = neg_fma(step_size, s[0] / fma(sqrt(s[1]), denominator_scale, eps), p);
  }

  static void reference(double& p, double g, double* s, const Options& o, double lr, double weight_decay, double t) {
    if (kDecoupled) p -= lr * weight_decay * p;
    if (!kDecoupled) g += weight_decay * p;
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * g;
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * g * g;
    p -= lr * (s[0] / (1 - std::pow(o.beta1, t))) / (std::sqrt(s[1]) / std::sqrt(1 - std::pow(o.beta2, t)) + o.eps);
  }
};
using AdamW = Adaptive<true>;
using Adam = Adaptive<false>;

}  // namespace halftone::optim
