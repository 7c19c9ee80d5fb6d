// links: metrics
// seeds: tests/fuzz/seeds/metrics_jsonl
// dict: { } [ ] " : , "kind" "step" "time" "rank" "train" "run" "nan" "-inf" 1e308 -0 null \n
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "halftone/train/metrics_file.h"

// A line of metrics.jsonl: never an exception, and the result can be written and read again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const auto line = parse_metrics_line({reinterpret_cast<const char*>(data), size});
  if (!line || line->kind == "run") return 0;
  const auto again = parse_metrics_line(format_metrics_line(*line));
  if (!again || again->kind != line->kind || again->step != line->step || again->message != line->message) std::abort();
  if (again->scalars.size() != line->scalars.size()) std::abort();
  for (const auto& [name, value] : line->scalars) {
    const double* found = find_scalar(again->scalars, name);
    if (!found || (std::bit_cast<uint64_t>(*found) != std::bit_cast<uint64_t>(value) && !std::isnan(value))) std::abort();
  }
  return 0;
}
