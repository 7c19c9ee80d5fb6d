#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/ops/quantization_stats.h"
#include "halftone/train/metrics.h"

namespace halftone {

// metrics.log_quantization: watches the linears from its construction until its destruction (one step).
class QuantizationReport {
 public:
  explicit QuantizationReport(bool pads = false);  // as QuantizationStats
  ~QuantizationReport();
  QuantizationReport(const QuantizationReport&) = delete;
  QuantizationReport& operator=(const QuantizationReport&) = delete;
  // Writes what was seen so far; nothing when no linear ran. `gather`: of several processes that have layers of one model, what all of them
  // say where they are told of, else what is given (Processes::of_stages).
  using Gather = std::function<std::vector<std::string>(const std::string& own)>;
  void write(int64_t step, MetricsLogger& metrics, const Gather& gather = nullptr) const;

 private:
  std::shared_ptr<QuantizationStats> stats_;
};

// Figures of one process for another, and those of all in the order of the model's layers.
std::string figures_text(const std::vector<QuantizationFigures>& figures);
std::vector<QuantizationFigures> joined_figures(const std::vector<std::string>& texts);

// quant/<layer>/<operand>/{amax,sat_frac,flushed_frac,sqnr,nonfinite}, those that exist.
Scalars quantization_scalars(const std::vector<QuantizationFigures>& figures);

// The layer with the lowest SQNR of every operand and product, how many elements are not finite, and where the first of them
// appeared in the order of execution: "quantization step: 10  lowest SQNR in dB: x.fwd 14.2 layers.3.feed_forward.w2, ...".
std::string quantization_line(int64_t step, const std::vector<QuantizationFigures>& figures);

}  // namespace halftone
