#include "halftone/train/quantization_report.h"

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/train/console.h"

namespace halftone {
namespace {

// NaN is worse than any number.
bool worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

}  // namespace

QuantizationReport::QuantizationReport() : stats_(std::make_shared<QuantizationStats>()) { quantization_stats() = stats_; }
QuantizationReport::~QuantizationReport() { quantization_stats().reset(); }

void QuantizationReport::write(int64_t step, MetricsLogger& metrics) const {
  const std::vector<QuantizationFigures> figures = stats_->read();
  if (!figures.empty()) metrics.log_quantization(step, quantization_scalars(figures), quantization_line(step, figures));
}

Scalars quantization_scalars(const std::vector<QuantizationFigures>& figures) {
  Scalars s;
  for (const QuantizationFigures& f : figures) {
    const std::string prefix = fmt::format("quant/{}/{}/", f.layer, f.operand);
    s.emplace_back(prefix + "amax", f.amax);
    if (f.saturated) s.emplace_back(prefix + "sat_frac", *f.saturated);
    if (f.flushed) s.emplace_back(prefix + "flushed_frac", *f.flushed);
    if (f.sqnr) s.emplace_back(prefix + "sqnr", *f.sqnr);
    s.emplace_back(prefix + "nonfinite", f.nonfinite);
  }
  return s;
}

std::string quantization_line(int64_t step, const std::vector<QuantizationFigures>& figures) {
  std::string line;
  double nonfinite = 0;
  const QuantizationFigures* first = nullptr;
  for (const QuantizationFigures& f : figures) {
    nonfinite += f.nonfinite;
    if (f.nonfinite > 0 && first == nullptr) first = &f;
  }
  for (const std::string_view operand : kWatched) {
    const QuantizationFigures* worst = nullptr;
    for (const QuantizationFigures& f : figures) {
      if (f.operand == operand && f.sqnr && (worst == nullptr || worse(*f.sqnr, *worst->sqnr))) worst = &f;
    }
    if (worst != nullptr) line += fmt::format("{}{} {:.1f} {}", line.empty() ? "" : ", ", operand, *worst->sqnr, worst->layer);
  }
  line = fmt::format("quantization step: {:2}  {}", step, line.empty() ? "no operand is quantised" : "lowest SQNR in dB: " + line);
  if (first != nullptr) line += fmt::format("  non-finite elements: {:.0f}, first in {} {}", nonfinite, first->layer, first->operand);
  return line;
}

}  // namespace halftone
