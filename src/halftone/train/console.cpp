#include "halftone/train/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace halftone {
namespace {

constexpr const char* kRed = "\033[31m";
constexpr const char* kGreen = "\033[32m";
constexpr const char* kYellow = "\033[33m";
constexpr const char* kBlue = "\033[34m";
constexpr const char* kMagenta = "\033[35m";
constexpr const char* kCyan = "\033[36m";
constexpr const char* kOrange = "\033[38;2;180;60;0m";
constexpr const char* kTurquoise = "\033[38;2;54;234;195m";
constexpr const char* kReset = "\033[39m";

// Joins fields with two spaces.
class Line {
 public:
  explicit Line(bool colors) : colors_(colors) {}
  void add(const char* color, const std::string& field) {
    if (!text_.empty()) text_ += "  ";
    if (colors_) text_ += color;
    text_ += field;
  }
  std::string finish() { return colors_ ? text_ + kReset : text_; }

 private:
  bool colors_;
  std::string text_;
};

void add_memory(Line& line, const Scalars& scalars, const std::string& prefix) {
  const double* gib = find_scalar(scalars, prefix + "memory/max_reserved(GiB)");
  const double* percent = find_scalar(scalars, prefix + "memory/max_reserved(%)");
  if (gib) line.add(kTurquoise, fmt::format("memory: {:5.2f}GiB({:.2f}%)", *gib, percent ? *percent : 0.0));
}

}  // namespace

bool colors_wanted(bool disable_color_printing) {
  const char* no_color = std::getenv("NO_COLOR");
  return !disable_color_printing && (!no_color || !*no_color) && ::isatty(STDOUT_FILENO);
}

double plain_nan(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

std::string thousands(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", plain_nan(value), decimals);
  if (!std::isfinite(value)) return text;
  const size_t point = std::min(text.find('.'), text.size());
  const size_t first = text.starts_with('-') ? 1 : 0;
  for (size_t i = point; i > first + 3;) text.insert(i -= 3, ",");
  return text;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto total = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60, rest = total % 60;
  if (days > 0) return fmt::format("{}d{:02}h", days, hours);
  if (hours > 0) return fmt::format("{}h{:02}m", hours, minutes);
  if (minutes > 0) return fmt::format("{}m{:02}s", minutes, rest);
  return fmt::format("{}s", rest);
}

std::string train_line(int64_t step, const Scalars& scalars, const std::optional<Progress>& progress, bool colors) {
  Line line(colors);
  line.add(kRed, fmt::format("step: {:2}", step));
  if (const double* loss = find_scalar(scalars, "loss_metrics/global_avg_loss"))
    line.add(kGreen, fmt::format("loss: {:8.5f}", plain_nan(*loss)));
  if (const double* norm = find_scalar(scalars, "grad_norm")) line.add(kOrange, fmt::format("grad_norm: {:7.4f}", plain_nan(*norm)));
  add_memory(line, scalars, "");
  if (const double* tps = find_scalar(scalars, "throughput(tps)")) line.add(kBlue, "tps: " + thousands(*tps));
  if (const double* tflops = find_scalar(scalars, "tflops")) line.add(kCyan, "tflops: " + thousands(*tflops, 2));
  if (const double* mfu = find_scalar(scalars, "mfu(%)")) line.add(kMagenta, fmt::format("mfu: {:.2f}%", plain_nan(*mfu)));
  if (progress && progress->total_steps > 0) {
    line.add(kReset, "eta: " + duration_text(progress->seconds_left));
    line.add(kReset, fmt::format("{}%", 100 * step / progress->total_steps));
  }
  return line.finish();
}

std::string validate_line(int64_t step, const Scalars& scalars, bool colors) {
  const std::string prefix = "validation_metrics/";
  Line line(colors);
  line.add(kYellow, fmt::format("validate step: {:2}", step));
  if (const double* loss = find_scalar(scalars, prefix + "loss")) line.add(kGreen, fmt::format("loss: {:7.4f}", plain_nan(*loss)));
  add_memory(line, scalars, prefix);
  if (const double* tps = find_scalar(scalars, prefix + "throughput(tps)")) line.add(kBlue, "tps: " + thousands(*tps));
  if (const double* bits = find_scalar(scalars, prefix + "bits_per_byte"))
    line.add(kReset, fmt::format("bits_per_byte: {:.4f}", plain_nan(*bits)));
  return line.finish();
}

}  // namespace halftone
