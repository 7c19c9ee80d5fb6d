// links: base
// sources: src/halftone/parallel/schedule.cpp src/halftone/parallel/schedule_rules.cpp
// seeds: tests/fuzz/seeds/schedule_csv
// dict: 0F0 0B0 0I0 0W0 1F1 2B3 , ,, \n \r\n \x20 " F I W B 1048575 1048576 9223372036854775807 -1
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/parallel/schedule.h"

// A schedule file for the ranks and stages in its first byte: yields a one-line Error, or a schedule that a pipeline can run and that is
// the same after writing and reading.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  if (size == 0) return 0;
  const int64_t ranks = 1 + data[0] % 4, stages = ranks * (1 + data[0] / 4 % 3);
  parallel::Schedule s;
  try {
    s = parallel::parse_schedule({reinterpret_cast<const char*>(data) + 1, size - 1}, "x.csv", ranks, stages);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos || std::string_view(error.what()).size() > 400) std::abort();
    return 0;
  }
  const std::string csv = parallel::schedule_csv(s);
  const parallel::Schedule again = parallel::parse_schedule(csv, "y.csv", ranks, stages);
  if (parallel::schedule_csv(again) != csv || again.microbatches != s.microbatches || again.rank_of != s.rank_of) std::abort();
  const parallel::Timeline t = parallel::simulate(parallel::repeated(s, 2));
  if (t.bubble < 0 || t.bubble >= 1) std::abort();
  for (const auto& rank : parallel::forward_only(s).ranks) {
    for (const parallel::Action& a : rank)
      if (a.stage >= stages || a.microbatch >= s.microbatches) std::abort();
  }
  return 0;
}
