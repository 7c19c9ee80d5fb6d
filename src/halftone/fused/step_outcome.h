#pragma once
#include <cstdint>
#include <limits>

namespace halftone {

// What becomes of a training step, in the memory of the device that trains: the optimizer reads it there, the host when it can.
struct StepOutcome {
  double loss_sum = 0;    // nats over the valid labels, added by the micro-batches
  double grad_norm = 0;   // before clipping
  float grad_factor = 1;  // of clipping
  bool finite = true;     // loss and norm
  bool updated = true;    // else no parameter and no moment changes, and gradients are zeroed alone
};

// Which steps update, and how far.
struct StepLimits {
  int64_t valid_labels = 1;
  double mean_loss = std::numeric_limits<double>::infinity();  // above it nothing is updated
  double grad_norm = std::numeric_limits<double>::infinity();  // to which gradients are clipped
};

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is infinite; NaN stays NaN.
constexpr float clip_factor(double norm, double max_norm) {
  if (!(norm >= 0)) return static_cast<float>(norm);
  if (max_norm == std::numeric_limits<double>::infinity()) return 1.0f;
  const double factor = max_norm / (norm + 1e-6);
  return static_cast<float>(factor < 1 ? factor : 1.0);
}

// Completes an outcome that holds the sum of losses: the same decision on the host and on a device.
constexpr void judge(StepOutcome& outcome, double grad_norm, const StepLimits& limits) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const double loss = outcome.loss_sum;
  outcome.grad_norm = grad_norm;
  outcome.grad_factor = clip_factor(grad_norm, limits.grad_norm);
  outcome.finite = loss >= -kMost && loss <= kMost && grad_norm <= kMost;
  outcome.updated = outcome.finite && loss / static_cast<double>(limits.valid_labels) <= limits.mean_loss;
}

}  // namespace halftone
