#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone::parallel {

// One pass of a micro-batch through a pipeline stage: forward, backward for the input (dgrad), backward for the weights (wgrad), or full
// backward. The previous stage waits for the input gradient only.
enum class Kind : char { forward = 'F', input = 'I', weight = 'W', full = 'B' };

struct Action {
  int64_t stage = 0;
  Kind kind = Kind::forward;
  int64_t microbatch = 0;
  int64_t cell = 0;  // column in its line of a file, from 1
};

// "3F0"
std::string action_text(const Action& action);

// Expected times of F, I and W for each stage, in any unit; B takes the last two. Empty: F, I and W take 1.
using StageTimes = std::vector<std::array<int64_t, 3>>;

// The actions of every rank of a pipeline in one step, in order.
struct Schedule {
  int64_t stages = 0, microbatches = 0;
  std::vector<std::vector<Action>> ranks;
  std::vector<int64_t> rank_of;  // by stage
  StageTimes expected;
};

// For some of these names a rank holds one stage, for others several. V schedules have exactly two, the second counted from the end: rank
// r has r and stages - 1 - r (V); otherwise r, r + ranks, ...
bool is_single_stage(std::string_view name);
bool is_v_shaped(std::string_view name);

// By name (platform.md 9.5), for any number of micro-batches. GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019), Interleaved1F1B
// (Narayanan et al. 2021), LoopedBFS (Lamy-Poirier 2023), InterleavedZeroBubble and ZBVZeroBubble (Qi et al. 2024), DualPipeV
// (DeepSeek-AI 2025). Schedules that fill gaps with weight gradients place them by the `expected` times.
Schedule make_schedule(std::string_view name, int64_t ranks, int64_t stages, int64_t microbatches, StageTimes expected = {});

// One line per rank, cells "<stage><F|I|W|B><microbatch>" or blank. Error naming line and cell; `source` names the file.
Schedule parse_schedule(std::string_view csv, const std::string& source, int64_t ranks, int64_t stages);
Schedule read_schedule(const std::string& path, int64_t ranks, int64_t stages);
std::string schedule_csv(const Schedule& schedule);

// Repeated `times` in sequence, for consecutive micro-batches.
Schedule repeated(const Schedule& schedule, int64_t times);
// Its forward passes only, for evaluation.
Schedule forward_only(const Schedule& schedule);

// Begin and end times of all actions if messages take no time.
struct Timeline {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> times;  // of each rank's actions
  int64_t length = 0;
  double bubble = 0;                // fraction of the ranks' time spent waiting
  std::vector<int64_t> most_alive;  // by rank: the most passes through its stages whose tensors it holds at once
};
// Error naming the first cell that can never run, or what is missing or duplicated.
Timeline simulate(const Schedule& schedule, const std::string& source, const std::function<int64_t(const Action&)>& time);
Timeline simulate(const Schedule& schedule, const StageTimes& times = {}, const std::string& source = "the schedule");
int64_t time_of(const Action& action, const StageTimes& times);

}  // namespace halftone::parallel
