#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone::parallel {

// A micro-batch's way through one stage of a pipeline, and back: whole, or the gradients of what the stage reads and those of its weights
// apart, of which only the former are waited for by the stage before.
enum class Kind : char { forward = 'F', input = 'I', weight = 'W', full = 'B' };

struct Action {
  int64_t stage = 0;
  Kind kind = Kind::forward;
  int64_t microbatch = 0;
  int64_t cell = 0;  // of its line in a file, from 1
};

// "3F0"
std::string action_text(const Action& action);

// What F, I and W of each stage are expected to take, in any unit; B takes the last two. Empty: F, I and W take 1.
using StageTimes = std::vector<std::array<int64_t, 3>>;

// What every rank of a pipeline does in one step, in order.
struct Schedule {
  int64_t stages = 0, microbatches = 0;
  std::vector<std::vector<Action>> ranks;
  std::vector<int64_t> rank_of;  // of each stage
  StageTimes expected;
};

// Of these names one rank holds one stage, of the others several, of some exactly two, of which the second is counted from the end: rank r
// has r and stages - 1 - r (V), else r, r + ranks, ...
bool is_single_stage(std::string_view name);
bool is_v_shaped(std::string_view name);

// By name (platform.md 9.5), for any number of micro-batches. GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019), Interleaved1F1B
// (Narayanan et al. 2021), LoopedBFS (Lamy-Poirier 2023), InterleavedZeroBubble and ZBVZeroBubble (Qi et al. 2024), DualPipeV (DeepSeek-AI
// 2025). Where weight gradients fill gaps, `expected` says where these are.
Schedule make_schedule(std::string_view name, int64_t ranks, int64_t stages, int64_t microbatches, StageTimes expected = {});

// A line for each rank, cells "<stage><F|I|W|B><microbatch>" or blank. Error naming line and cell of what is wrong; `source` names the
// file.
Schedule parse_schedule(std::string_view csv, const std::string& source, int64_t ranks, int64_t stages);
Schedule read_schedule(const std::string& path, int64_t ranks, int64_t stages);
std::string schedule_csv(const Schedule& schedule);

// `times` in a row, with the micro-batches that follow.
Schedule repeated(const Schedule& schedule, int64_t times);
// Its forward passes alone, for evaluation.
Schedule forward_only(const Schedule& schedule);

// When everything begins and ends if messages take no time.
struct Timeline {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> times;  // of each rank's actions
  int64_t length = 0;
  double bubble = 0;                // share of the ranks' time in which they wait
  std::vector<int64_t> most_alive;  // of each rank: passes through its stages whose tensors it keeps at once
};
// Error naming the first cell that can never run, or what is missing or there twice.
Timeline simulate(const Schedule& schedule, const std::string& source, const std::function<int64_t(const Action&)>& time);
Timeline simulate(const Schedule& schedule, const StageTimes& times = {}, const std::string& source = "the schedule");
int64_t time_of(const Action& action, const StageTimes& times);

}  // namespace halftone::parallel
