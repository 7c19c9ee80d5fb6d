#include "halftone/cli/bench_pipeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>

#include "halftone/cli/text_table.h"
#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

constexpr int kSteps = 5;
constexpr std::string_view kKinds = "FIWB";

size_t index_of(const parallel::Action& a) { return kKinds.find(static_cast<char>(a.kind)); }

}  // namespace

Bubbles measure_bubbles(Engine& engine, Processes& processes, int64_t microbatches, const std::function<void()>& step) {
  parallel::Pipeline& pipeline = *engine.pipeline();
  const parallel::Schedule schedule = pipeline.schedule(microbatches);
  parallel::PassTimes times(engine.device());
  const auto world = static_cast<size_t>(processes.world());
  Bubbles b;
  b.busy_ms.assign(world, 0), b.stage_ms.assign(static_cast<size_t>(schedule.stages), {});
  std::vector<std::array<double, 4>> sums(b.stage_ms.size()), counts(b.stage_ms.size());
  pipeline.measure(&times);
  for (int i = 0; i < kSteps; ++i) {
    synchronize(engine.device());
    processes.exchange({});  // all ranks begin together
    step();
    synchronize(engine.device());
    double busy = 0;
    const std::vector<parallel::PassTimes::Pass> passes = times.passes();
    for (const auto& [action, begin, end] : passes) {
      busy += end - begin;
      sums[static_cast<size_t>(action.stage)][index_of(action)] += end - begin,
          ++counts[static_cast<size_t>(action.stage)][index_of(action)];
    }
    const std::vector<Processes::Said> said = processes.exchange({busy, passes.back().end});
    double longest = 0;
    for (size_t r = 0; r < world; ++r) b.busy_ms[r] += said[r][0] * 1e3 / kSteps, longest = std::max(longest, said[r][1]);
    b.ms += longest * 1e3 / kSteps;
  }
  pipeline.measure(nullptr);
  for (size_t s = 0; s < b.stage_ms.size(); ++s) {
    Processes::Said own{};
    for (size_t k = 0; k < kKinds.size(); ++k) own[k] = sums[s][k] / std::max(counts[s][k], 1.0) * 1e3;
    const std::vector<Processes::Said> said = processes.exchange(own);
    for (const Processes::Said& of : said) {
      for (size_t k = 0; k < kKinds.size(); ++k) b.stage_ms[s][k] = std::max(b.stage_ms[s][k], of[k]);  // of its slowest replica
    }
  }
  b.schedule = parallel::simulate(schedule, schedule.expected).bubble;
  b.passes = parallel::simulate(schedule, "the schedule", [&](const parallel::Action& a) {
               return static_cast<int64_t>(std::llround(b.stage_ms[static_cast<size_t>(a.stage)][index_of(a)] * 1e6));
             }).bubble;
  b.measured = 1 - std::accumulate(b.busy_ms.begin(), b.busy_ms.end(), 0.0) / (b.ms * static_cast<double>(world));
  return b;
}

std::string bubbles_text(const Bubbles& b) {
  const auto ms = [](double value) { return value > 0 ? fmt::format("{:.2f}", value) : std::string("-"); };
  TextTable stages({"stage", "F ms", "I ms", "W ms", "B ms"}), ranks({"rank", "passes ms", "waits ms", "waits %"});
  for (size_t s = 0; s < b.stage_ms.size(); ++s) {
    const auto& [f, i, w, whole] = b.stage_ms[s];
    stages.row({std::to_string(s), ms(f), ms(i), ms(w), ms(whole)});
  }
  for (size_t r = 0; r < b.busy_ms.size(); ++r)
    ranks.row({std::to_string(r), ms(b.busy_ms[r]), ms(b.ms - b.busy_ms[r]), fmt::format("{:.1f}", 100 * (1 - b.busy_ms[r] / b.ms))});
  return fmt::format(
      "pipeline: {:.1f}% of the ranks' time is bubbles as the schedule expects, {:.1f}% with the times of these passes, {:.1f}% "
      "measured\n{}\n{}",
      100 * b.schedule, 100 * b.passes, 100 * b.measured, stages.text(), ranks.text());
}

}  // namespace halftone::bench
