#pragma once
#include <string>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/train/engine.h"

namespace halftone {

// After restore_model: lets the model's linear layers multiply with the codes that the folder holds, which are not rounded again; their
// values stay those that were loaded where there is no such product. Nothing changes for a run's step, or without `codes`. Returns the line
// that says how the weights are stored, how they are multiplied, and why that differs. numbers: the compute dtype.
std::string multiply_as_stored(Engine& engine, const LoadedStep& step, const std::string& numbers, bool codes);

}  // namespace halftone
