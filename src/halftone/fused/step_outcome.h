#pragma once
#include <cstdint>
#include <limits>

namespace halftone {

// Outcome of a training step, in the memory of the training device: the optimizer reads it there, the host reads it later.
struct StepOutcome {
  double loss_sum = 0;    // nats summed over the valid labels of all micro-batches
  double grad_norm = 0;   // before clipping
  float grad_factor = 1;  // clipping factor
  bool finite = true;     // loss and norm are finite
  bool updated = true;    // if false, parameters and moments are unchanged and only the gradients are zeroed
};

// Conditions and limits of an update.
struct StepLimits {
  int64_t valid_labels = 1;
  double mean_loss = std::numeric_limits<double>::infinity();  // above it the step does not update
  double grad_norm = std::numeric_limits<double>::infinity();  // gradients are clipped to this norm
};

// min(1, max_norm / (norm + 1e-6)); 1 if max_norm is infinite; NaN stays NaN.
constexpr float clip_factor(double norm, double max_norm) {
  if (!(norm >= 0)) return static_cast<float>(norm);
  if (max_norm == std::numeric_limits<double>::infinity()) return 1.0f;
  const double factor = max_norm / (norm + 1e-6);
  return static_cast<float>(factor < 1 ? factor : 1.0);
}

// Completes an outcome that holds the sum of losses: the same decision on host and device.
constexpr void judge(StepOutcome& outcome, double grad_norm, const StepLimits& limits) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const double loss = outcome.loss_sum;
  outcome.grad_norm = grad_norm;
  outcome.grad_factor = clip_factor(grad_norm, limits.grad_norm);
  outcome.finite = loss >= -kMost && loss <= kMost && grad_norm <= kMost;
  outcome.updated = outcome.finite && loss / static_cast<double>(limits.valid_labels) <= limits.mean_loss;
}

}  // namespace halftone
