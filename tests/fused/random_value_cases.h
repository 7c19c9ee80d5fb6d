#pragma once
#include <vector>

#include "halftone/fused/random_fill.h"

namespace halftone {

// Every kind of initial values, and cuts that reach each branch of the quantile: centre, middle and, beyond 6.5, far, on both sides.
inline std::vector<RandomValues> random_value_cases() {
  return {normal_values(0, 0.02),
          normal_values(-3, 0),
          normal_values(0.5, 2),
          truncated_normal_values(0, 0.02, -2, 2),
          truncated_normal_values(0, 0.02, -0.04, 0.06),
          truncated_normal_values(1, 1, -1, 1.25),
          truncated_normal_values(0, 1, -8.4, -6.5),
          truncated_normal_values(0, 1, 6.5, 8.4),
          uniform_values(-1, 3),
          uniform_values(0, 1e-3)};
}

}  // namespace halftone
