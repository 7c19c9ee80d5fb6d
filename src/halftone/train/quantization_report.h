#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/ops/quantization_stats.h"
#include "halftone/train/metrics.h"

namespace halftone {

// metrics.log_quantization: watches the linear layers during its lifetime (one step).
class QuantizationReport {
 public:
  explicit QuantizationReport(bool pads = false);  // as QuantizationStats
  ~QuantizationReport();
  QuantizationReport(const QuantizationReport&) = delete;
  QuantizationReport& operator=(const QuantizationReport&) = delete;
  // Writes the figures so far; nothing if no linear ran. `gather`: with several ranks that hold layers of one model, returns the texts of
  // all on the reporting rank, and only `own` elsewhere (Processes::of_stages).
  using Gather = std::function<std::vector<std::string>(const std::string& own)>;
  void write(int64_t step, MetricsLogger& metrics, const Gather& gather = nullptr) const;

 private:
  std::shared_ptr<QuantizationStats> stats_;
};

// Serializes one rank's figures for another, and merges those of all in the model's layer order.
std::string figures_text(const std::vector<QuantizationFigures>& figures);
std::vector<QuantizationFigures> joined_figures(const std::vector<std::string>& texts);

// quant/<layer>/<operand>/{amax,sat_frac,flushed_frac,sqnr,nonfinite}, those that exist.
Scalars quantization_scalars(const std::vector<QuantizationFigures>& figures);

// The layer with the lowest SQNR for every operand and GEMM, the number of non-finite elements, and where the first of them appeared in
// execution order: "quantisation step: 10  lowest SQNR in dB: x.fwd 14.2 layers.3.feed_forward.w2, ...".
std::string quantization_line(int64_t step, const std::vector<QuantizationFigures>& figures);

}  // namespace halftone
