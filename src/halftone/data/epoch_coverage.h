#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/data/loader.h"

namespace halftone {

// Data that a run of `steps` leaves unused, or repeats many times: one line each, with figures and advice.
std::vector<std::string> training_coverage(const DataLoader& loader, int64_t steps);
// The same for a validation pass, whose loss means little if few predictions are left.
std::vector<std::string> validation_coverage(const DataLoader& loader);

}  // namespace halftone
