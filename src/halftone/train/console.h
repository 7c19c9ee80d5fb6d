#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "halftone/train/metrics_file.h"

// The lines of a run on the terminal, with torchtitan's fields first so that its log parsers keep working.
namespace halftone {

// Whether to colour: standard output is a terminal, NO_COLOR is unset or empty, and metrics.disable_color_printing is off.
bool colors_wanted(bool disable_color_printing);

struct Progress {
  int64_t total_steps = 0;
  double seconds_left = 0;
};

// step:  1  loss:  8.13756  grad_norm:  1.9731  memory:  1.63GiB(1.17%)  tps: 41,230  tflops: 2.95  mfu: 0.30%  eta: 3m12s  42%
// Fields without a scalar are omitted; the last two appear with `progress`.
std::string train_line(int64_t step, const Scalars& scalars, const std::optional<Progress>& progress, bool colors);
// validate step:  5  loss:  7.0912  memory:  1.63GiB(1.17%)  tps: 88,114  bits_per_byte: 1.2345
std::string validate_line(int64_t step, const Scalars& scalars, bool colors);

// Clears the sign of a NaN, which is meaningless and would print "-nan"; returns other numbers unchanged.
double plain_nan(double value);
std::string duration_text(double seconds);              // 42s, 3m12s, 2h05m, 3d04h
std::string thousands(double value, int decimals = 0);  // 1,234,567

}  // namespace halftone
