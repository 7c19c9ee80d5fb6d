#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

// Which format where (halftone plan): the choice, without measuring. Definitions are in docs/plan.md.
namespace halftone::plan {

// Noise-to-signal energies of a layer's three products, y, dx and dw; 0: none.
using Noise = std::array<double, 3>;

// Predicted increase of the final loss in percent by layers of a model with `layers` linear layers, of which each has this noise.
double loss_increase(const std::vector<Noise>& noise, double layers);

// One candidate format on one group of layers.
struct Trial {
  double seconds = 0;                   // of a whole step
  double loss = 0;                      // predicted increase in percent
  double clipped = 0, underflowed = 0;  // largest shares of an operand
  Noise noise{};                        // largest of its layers
};

// Layers of one joined product: wq, wk, wv; w1, w3; any other layer alone.
struct Group {
  std::vector<std::string> layers;
  int64_t tokens = 0, outputs = 0, inputs = 0;  // X[tokens, inputs], all W[outputs, inputs]
  double seconds = 0;                           // of a whole step, in the compute dtype
  std::vector<std::optional<Trial>> trials{};   // by candidate; none: it does not take these sizes
};

struct Budget {
  std::optional<double> speedup;  // of the whole step, to be reached
  std::optional<double> loss;     // predicted increase in percent, not to be exceeded
};

struct Choice {
  std::vector<int> formats;  // by group: index of a candidate, or -1 for the compute dtype
  double seconds = 0;        // predicted, of a whole step
  double loss = 0;           // predicted increase in percent
};

// Greedy: from the compute dtype everywhere, the change of one group's format that gains most seconds per predicted loss comes next, until
// the speed-up is reached, nothing is faster, or every change would exceed the budget. Error if the speed-up is not reached: it names the
// largest one, and the linear layers' share of the step.
Choice choose_formats(const std::vector<Group>& groups, double step_seconds, const Budget& budget);

// A recipe file (quantize.recipe) with preset recommended, one modifier a format, layers by name; `comment` heads it.
std::string recipe_yaml(const std::vector<Group>& groups, const Choice& choice, const std::vector<std::string>& candidates,
                        const std::string& comment);

}  // namespace halftone::plan
