#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace halftone {

// Weight of a mixture's source by step: "0.7", or "0.7, 10000: 0.3, 20000: 0" (from step 10,000 on 0.3, ...).
class WeightSchedule {
 public:
  WeightSchedule() = default;
  // Error naming `field` for anything else.
  WeightSchedule(const std::string& text, const std::string& field);
  double at(int64_t step) const;
  // Weights from steps on, the first from step 0.
  const std::vector<std::pair<int64_t, double>>& changes() const { return changes_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::pair<int64_t, double>> changes_;  // ascending steps, the first 0
};

// The source of row `row`, a pure function of its arguments. Rows are drawn in rounds of one row a lane by systematic sampling: a round of
// L rows holds floor or ceil of share * L rows of each source, and every row has each source with the probability of its share. Sources of
// weight 0 are never drawn; -1 if all weights are 0.
int draw_source(int64_t row, int64_t lanes, uint64_t seed, std::span<const double> weights);

}  // namespace halftone
