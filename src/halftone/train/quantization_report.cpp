#include "halftone/train/quantization_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/train/console.h"

namespace halftone {
namespace {

// NaN is worse than any number.
bool worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

// Sort key for when the step computed a figure's data: forward calls in order, then backward in reverse; within a call, the operands of
// all layers before its GEMMs. `layer` numbers the report's layers.
std::array<int64_t, 5> moment(const QuantizationFigures& f, int64_t layer) {
  const bool product = f.operand.find('.') == std::string_view::npos;
  const bool forward = f.operand.ends_with(".fwd") || f.operand == "y";
  const auto role = std::find(kWatched.begin(), kWatched.end(), f.operand) - kWatched.begin();
  const int64_t direction = forward ? 1 : -1;
  return {forward ? 0 : 1, direction * f.call, product ? 1 : 0, direction * layer, role};
}

// The first figure that is not finite; null if all are finite. Later figures of the step depend on it.
const QuantizationFigures* first_nonfinite(const std::vector<QuantizationFigures>& figures) {
  const QuantizationFigures* first = nullptr;
  std::array<int64_t, 5> earliest{};
  int64_t layer = 0;
  for (size_t i = 0; i < figures.size(); ++i) {
    const QuantizationFigures& f = figures[i];
    if (i > 0 && f.layer != figures[i - 1].layer) ++layer;
    if (!(f.nonfinite > 0)) continue;
    const auto at = moment(f, layer);
    if (first == nullptr || at < earliest) first = &f, earliest = at;
  }
  return first;
}

}  // namespace

QuantizationReport::QuantizationReport(bool pads) : stats_(std::make_shared<QuantizationStats>(pads)) { quantization_stats() = stats_; }
QuantizationReport::~QuantizationReport() { quantization_stats().reset(); }

std::string figures_text(const std::vector<QuantizationFigures>& figures) {
  std::string text;
  const auto number = [](const std::optional<double>& x) { return x ? fmt::format("{}", *x) : "-"; };
  for (const QuantizationFigures& f : figures) {
    text += fmt::format("{} {} {} {} {} {} {} {}\n", f.layer, f.operand, f.amax, f.nonfinite, number(f.saturated), number(f.flushed),
                        number(f.sqnr), f.call);
  }
  return text;
}

std::vector<QuantizationFigures> joined_figures(const std::vector<std::string>& texts) {
  struct Row {
    int64_t place;  // position of its block in the model
    size_t process;
    QuantizationFigures figures;
  };
  std::vector<Row> rows;
  for (size_t process = 0; process < texts.size(); ++process) {
    std::istringstream words(texts[process]);
    const auto number = [&]() -> std::optional<double> {
      std::string word;
      words >> word;
      if (word == "-") return std::nullopt;
      return std::strtod(word.c_str(), nullptr);  // accepts nan and inf
    };
    std::string layer, operand;
    while (words >> layer >> operand) {
      const auto* known = std::find(kWatched.begin(), kWatched.end(), operand);
      check(known != kWatched.end(), "quantization report: unknown operand {}", operand);
      QuantizationFigures f;
      f.layer = layer, f.operand = *known;
      f.amax = number().value_or(0), f.nonfinite = number().value_or(0);
      f.saturated = number(), f.flushed = number(), f.sqnr = number();
      words >> f.call;
      constexpr std::string_view kBlock = "layers.";
      const int64_t place = layer.starts_with(kBlock) ? std::strtoll(layer.c_str() + kBlock.size(), nullptr, 10) : INT64_MAX;
      rows.push_back({place, process, std::move(f)});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.place < b.place; });
  // Each rank counts its own calls.
  std::vector<QuantizationFigures> all;
  int64_t calls = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].process != rows[i - 1].process || rows[i].figures.call != rows[i - 1].figures.call) ++calls;
    all.push_back(rows[i].figures);
    all.back().call = calls;
  }
  return all;
}

void QuantizationReport::write(int64_t step, MetricsLogger& metrics, const Gather& gather) const {
  std::vector<QuantizationFigures> figures = stats_->read();
  if (gather) figures = joined_figures(gather(figures_text(figures)));
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
  for (const QuantizationFigures& f : figures) nonfinite += f.nonfinite;
  const QuantizationFigures* first = first_nonfinite(figures);
  for (const std::string_view operand : kWatched) {
    const QuantizationFigures* worst = nullptr;
    for (const QuantizationFigures& f : figures) {
      if (f.operand == operand && f.sqnr && (worst == nullptr || worse(*f.sqnr, *worst->sqnr))) worst = &f;
    }
    if (worst != nullptr) line += fmt::format("{}{} {:.1f} {}", line.empty() ? "" : ", ", operand, plain_nan(*worst->sqnr), worst->layer);
  }
  line = fmt::format("quantization step: {:2}  {}", step, line.empty() ? "no operand is quantised" : "lowest SQNR in dB: " + line);
  if (first != nullptr) line += fmt::format("  non-finite elements: {:.0f}, first in {} {}", nonfinite, first->layer, first->operand);
  return line;
}

}  // namespace halftone
