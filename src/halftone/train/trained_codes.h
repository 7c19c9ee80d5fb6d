#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

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
// Why the step does not determine the codes that its run multiplied with; empty if it does.
std::string lost_codes(const TrainedCodes& codes, const LoadedStep& step, const std::string& weight);

// A weight whose codes are not those of training: its error, its codes and the reason.
struct AddedError {
  std::string weight;
  double decibels = 0;
  std::string_view form;
  std::string why;
};
// Logs how many weights have the codes of training, and what the others lose, largest error first.
void report_codes(int64_t trained, size_t weights, std::vector<AddedError> added);

// Empty for a Hugging Face folder, and for a step that does not say how it was trained.
TrainedCodes trained_codes(const LoadedStep& step);

}  // namespace halftone
