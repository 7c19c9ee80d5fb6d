#include "halftone/cli/plan_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "halftone/base/error.h"

namespace halftone::plan {
namespace {

// docs/plan.md: three quarters of a format's gap come from the forward product; percent of the loss per noise-to-signal energy.
constexpr Noise kWeights = {0.75, 0.125, 0.125};
constexpr double kPercentPerNoise = 200;

struct Move {
  size_t group = 0;
  int format = -1;
  double gain = 0, cost = 0;  // seconds, percent
  // No cost is the best rate; among these the larger gain.
  double rate() const { return cost > 0 ? gain / cost : std::numeric_limits<double>::infinity(); }
  bool better(const Move& o) const { return rate() != o.rate() ? rate() > o.rate() : gain > o.gain; }
};

}  // namespace

double loss_increase(const std::vector<Noise>& noise, double layers) {
  double sum = 0;
  for (const Noise& n : noise) sum += std::inner_product(n.begin(), n.end(), kWeights.begin(), 0.0);
  return kPercentPerNoise * sum / layers;
}

Choice choose_formats(const std::vector<Group>& groups, double step_seconds, const Budget& budget) {
  Choice c{std::vector<int>(groups.size(), -1), step_seconds, 0};
  const auto reached = [&] { return budget.speedup && step_seconds / c.seconds >= *budget.speedup; };
  std::vector<double> seconds, loss(groups.size(), 0);
  for (const Group& g : groups) seconds.push_back(g.seconds);
  while (!reached()) {
    std::optional<Move> best;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t f = 0; f < groups[g].trials.size(); ++f) {
        const auto& trial = groups[g].trials[f];
        if (!trial || !std::isfinite(trial->loss)) continue;
        const Move m{g, static_cast<int>(f), seconds[g] - trial->seconds, trial->loss - loss[g]};
        if (m.gain <= 0 || (budget.loss && c.loss + m.cost > *budget.loss)) continue;
        if (!best || m.better(*best)) best = m;
      }
    }
    if (!best) break;
    const Trial& t = *groups[best->group].trials[static_cast<size_t>(best->format)];
    c.formats[best->group] = best->format, seconds[best->group] = t.seconds, loss[best->group] = t.loss;
    c.seconds -= best->gain;
    c.loss = std::accumulate(loss.begin(), loss.end(), 0.0);
  }
  if (budget.speedup && !reached()) {
    double linear = 0;
    for (const Group& g : groups) linear += g.seconds;
    fail("plan: --speedup {}: at most {:.3f} is possible here{}: the linear layers are {:.0f}% of the step; ask for less{}",
         *budget.speedup, step_seconds / c.seconds, budget.loss ? fmt::format(" within --loss-budget {}", *budget.loss) : "",
         100 * linear / step_seconds, budget.loss ? ", or raise --loss-budget" : "");
  }
  return c;
}

std::string recipe_yaml(const std::vector<Group>& groups, const Choice& choice, const std::vector<std::string>& candidates,
                        const std::string& comment) {
  std::string text, line;
  for (std::istringstream lines(comment); std::getline(lines, line);) text += "# " + line + "\n";
  text += "training_stage:\n";
  const auto modifier = [&](size_t index, const std::string& scheme, const std::string& targets) {
    text += fmt::format("  format{}_modifiers:\n    LowPrecisionTrainingModifier:\n      scheme: {}\n", index, scheme);
    if (scheme != "bf16") text += "      preset: recommended\n";
    text += fmt::format("      targets:\n{}", targets);
  };
  size_t count = 0;
  for (size_t f = 0; f < candidates.size(); ++f) {
    std::string targets;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (choice.formats[g] != static_cast<int>(f)) continue;
      for (const std::string& layer : groups[g].layers) targets += fmt::format("        - {}\n", layer);
    }
    if (!targets.empty()) modifier(++count, candidates[f], targets);
  }
  if (count == 0) modifier(1, "bf16", "        - Linear\n");
  return text;
}

}  // namespace halftone::plan
