#pragma once
#include <optional>
#include <string>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/formats/recipe.h"
#include "halftone/train/engine.h"

namespace halftone {

// The products, X in its form by W in the folder's own codes, of weights that a Hugging Face folder stores this way; none: there are none,
// and `why` says what for.
std::optional<LinearRecipe> products_of(const HfWeightScheme& weight, std::string& why);

// After restore_model: lets the model's linear layers multiply with the codes that the folder holds, which are not rounded again; their
// values stay those that were loaded where there is no such product. Nothing changes for a run's step, or without `codes`. Returns the line
// that says how the weights are stored, how they are multiplied, and why that differs. numbers: the compute dtype.
std::string multiply_as_stored(Engine& engine, const LoadedStep& step, const std::string& numbers, bool codes);

}  // namespace halftone
