#pragma once
#include <map>
#include <string>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/formats/recipe.h"

namespace halftone {

// The quantisers of the weights that a run's forward products read in its step.
struct TrainedCodes {
  struct Weight {
    OperandSpec weight, input;
    std::string scheme;
  };
  std::map<std::string, Weight> weights{};  // by name; layers in the compute dtype have none
  bool bf16 = false;                        // the quantisers read weights rounded to bfloat16
};
// Empty for a Hugging Face folder, and for a step that does not say how it was trained.
TrainedCodes trained_codes(const LoadedStep& step);

}  // namespace halftone
