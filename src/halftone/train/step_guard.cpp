#include "halftone/train/step_guard.h"

#include <algorithm>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/train/metrics.h"

namespace halftone {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double StepGuard::loss_limit() const {
  const std::vector<double>& recent = progress_.recent_losses;
  if (config_.spike_factor <= 0 || recent.size() < kMedianWindow / 4) return std::numeric_limits<double>::infinity();
  return config_.spike_factor * median(recent);
}

void StepGuard::updated(int64_t step, double loss) {
  progress_.skipped_updates = 0;
  if (step > furthest_bad_step_) rollbacks_ = 0;
  progress_.recent_losses.push_back(loss);
  if (progress_.recent_losses.size() > kMedianWindow) progress_.recent_losses.erase(progress_.recent_losses.begin());
}

StepGuard::Refusal StepGuard::refused(int64_t step, const StepResult& r) {
  const std::string what =
      fmt::format("{} at step {} (first on rank {}): loss {}, gradient norm {}",
                  r.finite ? "loss is above spike_factor times its running median" : "loss or gradient norm is not finite", step,
                  r.max_rank, plain_nan(r.loss_sum / static_cast<double>(r.valid_labels)), plain_nan(r.grad_norm));
  if (config_.nonfinite == "rollback") {
    rolls_back(step, what);
    return {what, true};
  }
  if (config_.nonfinite != "skip")
    throw NonFiniteError(what + "; the update was not applied; training.nonfinite = \"skip\" or \"rollback\" continues");
  if (++progress_.skipped_updates > kMostRefused)
    throw NonFiniteError(fmt::format("{}; {} updates in a row were skipped", what, kMostRefused));
  return {what + "; update skipped", false};
}

void StepGuard::rolls_back(int64_t step, const std::string& what) {
  if (++rollbacks_ > kMostRefused) throw NonFiniteError(fmt::format("{}; {} rollbacks in a row did not help", what, kMostRefused));
  furthest_bad_step_ = std::max(furthest_bad_step_, step);
}

}  // namespace halftone
