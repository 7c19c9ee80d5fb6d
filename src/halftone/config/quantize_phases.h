#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "halftone/config/job_config.h"

// Schedules of formats: entries of quantize.phases, or modifiers of a recipe file with `from`, `first_layers` or `last_layers`. An entry
// begins at a step and holds to the end. With a scheme it replaces the recipes of the layers that it selects: by targets, ignore and depth,
// or without these all. Without a scheme it sets options of the recipes in effect. The last entry that selects a layer counts.
namespace halftone {

// Begin of a phase: a step (the first is 1), or behind a fraction of the run (above 0: instead of the step).
struct PhaseStart {
  int64_t step = 1;
  double fraction = 0;
  bool operator==(const PhaseStart&) const = default;
  int64_t first_step(int64_t steps) const;  // of a run of so many: 0.9 of 1000 begins at step 901
};

// Blocks at both ends of the model: counts, or fractions below 1 rounded up.
struct DepthRange {
  double first = 0, last = 0;
  bool operator==(const DepthRange&) const = default;
};

// A source of rules in a phase: [quantize], a modifier or an entry.
struct RecipeSource {
  QuantizeConfig options;
  std::string place;               // prefix of messages: "FILE:LINE: ", "quantize.phases[0]: " or empty
  int order = 0;                   // the largest of the sources that select a layer counts; 0: no entry
  std::vector<DepthRange> within;  // each has to contain the layer's block
};

// Starts of the phases: the run's begin, then the distinct ones of the entries, in their order. Error naming an entry whose `from` is
// malformed.
std::vector<PhaseStart> phase_starts(const QuantizeConfig& quantize);
// The sources of the phase with this index. Error naming an entry with an option that no scheme in effect has.
std::vector<RecipeSource> phase_sources(const QuantizeConfig& quantize, size_t phase);
// Steps of which fractions are meant, as those of the learning rate's schedule.
int64_t scheduled_steps(const JobConfig& config);

// "90%": as in the configuration, "" for the run's begin.
std::string start_text(const PhaseStart& start);

}  // namespace halftone
