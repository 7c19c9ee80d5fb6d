#pragma once
#include "halftone/optim/rule.h"

namespace halftone::optim {

// Stochastic gradient descent as torch.optim.SGD with dampening 0: g += wd * p; m = momentum * m + g; p -= lr * m, or with Nesterov's
// momentum p -= lr * (g + momentum * m).
struct Sgd {
  struct Options {
    double momentum = 0.9;
    bool nesterov = false;

    static void fields(auto& self, auto&& field) {
      field("momentum", self.momentum, "SGD: decay rate of the momentum; 0 = none", {.mark = Mark::E, .min = 0});
      field("nesterov", self.nesterov, "SGD: Nesterov's momentum", {.mark = Mark::E});
    }
  };
  static constexpr std::string_view kName = "SGD";
  static constexpr std::array kStates = {State{"momentum_buffer", kFirstMoment}};
  static constexpr bool kDecoupledDecay = false;

  static size_t states(const Options& o) { return o.momentum > 0 ? 1 : 0; }

  static void check(const Options& o, auto&& require) {
    require(o.momentum < 1, "momentum", o.momentum, "below 1", "");
    require(!o.nesterov || o.momentum > 0, "momentum", o.momentum, "above 0 with optimizer.nesterov", "");
  }

  float lr, weight_decay, momentum, ahead;  // ahead: not 0 with nesterov

  HALFTONE_RULE static Sgd at(const Options& o, double lr, double weight_decay, double /*t*/) {
    return {static_cast<float>(lr), static_cast<float>(weight_decay), static_cast<float>(o.momentum), o.nesterov ? 1.0f : 0.0f};
  }

  template <class V>
  HALFTONE_RULE void update(V& p, V g, V (&s)[1]) const {
    g = fma(weight_decay, p, g);
    s[0] = fma(momentum, s[0], g);
    p = neg_fma(lr, ahead != 0 ? fma(momentum, s[0], g) : s[0], p);
  }

  static void reference(double& p, double g, double* s, const Options& o, double lr, double weight_decay, double /*t*/) {
    g += weight_decay * p;
    s[0] = o.momentum * s[0] + g;
    p -= lr * (o.nesterov ? g + o.momentum * s[0] : s[0]);
  }
};

}  // namespace halftone::optim
