#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/data/loader.h"

namespace halftone {

// What a run of `steps` does not use of its data, or uses over and over: a line each, with figures and what to do.
std::vector<std::string> training_data_use(const DataLoader& loader, int64_t steps);
// The same of a validation pass, whose loss means little when few predictions are left.
std::vector<std::string> validation_data_use(const DataLoader& loader);

}  // namespace halftone
