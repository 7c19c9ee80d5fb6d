#pragma once
#include <functional>
#include <span>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/optim/registry.h"

namespace halftone::optim {

// Called with ok, option, value, what the value must be, and why, an ending of the message.
using Require = std::function<void(bool, std::string_view, double, std::string_view, std::string_view)>;

// A row of the registry, as everything but the steps reads it.
struct Optimizer {
  size_t place;
  std::string_view name;  // optimizer.name
  bool decoupled_decay;   // a step multiplies the weights by 1 - lr * weight_decay
  std::span<const State> (*states)(const Options&);
  bool (*takes)(std::string_view option);  // of [optimizer], beside those that all take
  void (*check)(const Options&, const Require&);
  // Step t of one element in fp64.
  void (*reference)(double& p, double g, double* states, const Options&, double lr, double weight_decay, double t);
};

template <class Rule>
Optimizer optimizer_row(size_t place) {
  return {place,
          Rule::kName,
          Rule::kDecoupledDecay,
          [](const Options& o) { return std::span<const State>(Rule::kStates).first(Rule::states(o)); },
          [](std::string_view option) {
            bool found = false;
            const typename Rule::Options options;
            Rule::Options::fields(
                options, [&](std::string_view name, auto&&, std::string_view, const FieldInfo& = {}) { found = found || name == option; });
            return found;
          },
          [](const Options& o, const Require& require) { Rule::check(o, require); },
          [](double& p, double g, double* states, const Options& o, double lr, double weight_decay, double t) {
            Rule::reference(p, g, states, o, lr, weight_decay, t);
          }};
}

inline const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> rows = [] {
    std::vector<Optimizer> all;
    Optimizers::each([&]<class Rule>(std::type_identity<Rule>) { all.push_back(optimizer_row<Rule>(all.size())); });
    return all;
  }();
  return rows;
}

inline std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const Optimizer& o : optimizers()) names.push_back(o.name);
  return names;
}

// Error if there is none of that name.
inline const Optimizer& optimizer_of(std::string_view name) {
  for (const Optimizer& o : optimizers())
    if (o.name == name) return o;
  fail("optimizer.name: expected a row of optim/registry.h, found '{}'", name);
}

}  // namespace halftone::optim
