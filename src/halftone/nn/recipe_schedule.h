#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "halftone/nn/recipe.h"

namespace halftone::nn {

// The recipes of a model's layers by step: those of [quantize] until an entry of quantize.phases begins, and so on.
class RecipeSchedule {
 public:
  // Resolves every phase on the whole model: before it is split and materialised, since its parameters suit all phases from then on
  // (compute copies, rows of a shard). The layers get the first phase's recipes. With quantize.phase set that phase is the only one. steps:
  // those of which fractions are meant. Error as apply_recipes, and naming a phase that changes no layer.
  RecipeSchedule(Module& model, const QuantizeConfig& quantize, const ModelConfig& config, Hardware hardware, int64_t layers,
                 int64_t steps);

  struct Phase {
    int64_t index = 0;  // of the run's phases
    PhaseStart start;
    LayerRecipes recipes;            // layers without: in the compute dtype
    std::vector<std::string> lines;  // as apply_recipes returns them
    std::string what;                // "nvfp4 on 36 layers, mxfp8_e4m3 on 6, 1 unquantised"
  };
  const std::vector<Phase>& phases() const { return phases_; }
  size_t phase() const { return now_; }  // whose recipes the layers have
  size_t phase_of(int64_t step) const;
  // Error if a phase would then not begin behind the one before it.
  void set_steps(int64_t steps);
  int64_t first_step(size_t phase) const { return phases_[phase].start.first_step(steps_); }
  std::pair<int64_t, int64_t> steps_of(size_t phase, int64_t last_step) const;  // first and last; none if the first is behind the last
  // Sets the layers' recipes; what they prepared for the former ones is freed. Whether the phase is another than before.
  bool enter(size_t phase);
  // Error if a layer of the split model has sizes that the scheme of some phase does not take.
  void check_split() const;
  // One line a phase: its steps, and `what`; none for a single one.
  std::vector<std::string> plan_lines(int64_t last_step) const;

 private:
  std::vector<QuantizableLayer*> layers_;
  struct Shape {
    Parameter* parameter;
    int64_t row_block;
    bool codes_alone;
  };
  std::vector<Shape> shapes_;  // of the weights, for all phases
  std::vector<Phase> phases_;
  int64_t steps_;
  size_t now_ = 0;
};

}  // namespace halftone::nn
