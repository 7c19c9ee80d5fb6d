#include "halftone/parallel/stages.h"

#include <algorithm>
#include <charconv>

#include "halftone/base/error.h"

namespace halftone::parallel {
namespace {

// The unit of a module of module_fqns_per_model_part; -1: unknown module.
int64_t unit_of(const std::string& name, int64_t layers) {
  if (name == "tok_embeddings") return 0;
  if (name == "norm" || name == "output") return layers + 1;
  constexpr std::string_view kLayers = "layers.";
  int64_t i = -1;
  if (!name.starts_with(kLayers)) return -1;
  const auto [end, error] = std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), i);
  return error == std::errc() && end == name.data() + name.size() && i >= 0 && i < layers ? i + 1 : -1;
}

std::vector<StageUnits> explicit_stages(const std::vector<StringList>& parts, int64_t layers) {
  constexpr const char* kField = "parallelism.module_fqns_per_model_part";
  std::vector<StageUnits> stages;
  int64_t next = 0, head = 0;  // next expected unit; modules of the last unit seen so far
  for (size_t s = 0; s < parts.size(); ++s) {
    std::vector<std::pair<int64_t, std::string>> units;
    for (const std::string& name : parts[s]) {
      const int64_t unit = unit_of(name, layers);
      check(unit >= 0, "{}: stage {} names {}; expected tok_embeddings, layers.0 ... layers.{}, norm or output", kField, s, name,
            layers - 1);
      units.emplace_back(unit, name);
    }
    std::sort(units.begin(), units.end());
    StageUnits stage{next, next};
    for (size_t i = 0; i < units.size(); ++i) {
      const auto& [unit, name] = units[i];
      const bool second_of_head = unit == layers + 1 && head == 1 && units[i - (i > 0)].second == "norm" && name == "output";
      check(unit == next || second_of_head,
            "{}: stage {} has {} where {} is expected; stages hold every module once, in the model's order, norm and output in one", kField,
            s, name,
            next == 0        ? "tok_embeddings"
            : next <= layers ? fmt::format("layers.{}", next - 1)
                             : "norm or nothing");
      if (unit == layers + 1) ++head;
      if (unit == next) stage.end = ++next;
    }
    check(stage.end > stage.first, "{}: stage {} is empty", kField, s);
    stages.push_back(stage);
  }
  check(next == layers + 2 && head == 2, "{}: {} is in no stage", kField,
        next == 0        ? "tok_embeddings"
        : next <= layers ? fmt::format("layers.{}", next - 1)
                         : "norm or output");
  return stages;
}

}  // namespace

std::vector<StageUnits> split_stages(const ParallelismConfig& c, int64_t layers) {
  const int64_t ranks = c.pipeline_parallel_degree;
  if (ranks == 1) return {{0, layers + 2}};
  if (c.module_fqns_per_model_part) return explicit_stages(*c.module_fqns_per_model_part, layers);
  const std::string& schedule = c.pipeline_parallel_schedule;
  const int64_t less_first = c.pipeline_parallel_first_stage_less_layers, less_last = c.pipeline_parallel_last_stage_less_layers;
  const int64_t slots = layers + less_first + less_last;
  int64_t stages = is_single_stage(schedule) ? ranks : 2 * ranks;
  if (c.pipeline_parallel_layers_per_stage) {
    const int64_t each = *c.pipeline_parallel_layers_per_stage;
    stages = (slots + each - 1) / each;
    const bool fits = is_single_stage(schedule) ? stages == ranks
                      : is_v_shaped(schedule)   ? stages == 2 * ranks
                                                : stages % ranks == 0 && stages >= 2 * ranks;
    check(fits,
          "parallelism.pipeline_parallel_layers_per_stage = {} makes {} stages of {} layers (counting those that the first and last stage "
          "have less); {} on parallelism.pipeline_parallel_degree = {} needs {}",
          each, stages, slots, schedule, ranks,
          is_single_stage(schedule) ? fmt::format("{}", ranks)
          : is_v_shaped(schedule)   ? fmt::format("{}", 2 * ranks)
                                    : fmt::format("a multiple of {}, at least {}", ranks, 2 * ranks));
  }
  check(stages <= slots,
        "parallelism.pipeline_parallel_degree = {} with parallelism.pipeline_parallel_schedule = {} has {} stages, more than the {} layers "
        "of the model plus those that the first and last stage have less",
        ranks, schedule, stages, slots);
  std::vector<StageUnits> result;
  int64_t next = 0;
  for (int64_t s = 0; s < stages; ++s) {
    const int64_t all = slots / stages + (s < slots % stages ? 1 : 0);
    const int64_t less = (s == 0 ? less_first : 0) + (s + 1 == stages ? less_last : 0);
    check(less <= all,
          "parallelism.pipeline_parallel_{}_stage_less_layers = {}, but a stage has {} layers (parallelism.pipeline_parallel_degree, "
          "parallelism.pipeline_parallel_layers_per_stage)",
          s == 0 ? "first" : "last", less, all);
    const int64_t units = all - less + (s == 0 ? 1 : 0) + (s + 1 == stages ? 1 : 0);
    check(units > 0, "parallelism: stage {} of the pipeline is empty", s);
    result.push_back({next, next + units});
    next += units;
  }
  return result;
}

std::string stage_text(int64_t stage, const StageUnits& units, int64_t rank, int64_t layers) {
  const int64_t first = std::max<int64_t>(units.first, 1) - 1, end = std::min(units.end - 1, layers);
  return fmt::format("stage {:<3} on rank {:<6} {:>3} layers{}{}{}", stage, rank, end - first,
                     end > first ? fmt::format(": {} - {}", first, end - 1) : "", units.first == 0 ? ", tok_embeddings" : "",
                     units.end == layers + 2 ? ", norm, output" : "");
}

int64_t microbatches_of_step(const ParallelismConfig& config, const TrainingConfig& t, int64_t batch) {
  const int64_t passes = t.global_batch_size > 0 ? std::max<int64_t>(1, t.global_batch_size / (t.local_batch_size * batch)) : 1;
  if (config.pipeline_parallel_degree == 1) return passes;
  return passes * std::max<int64_t>(1, t.local_batch_size / config.pipeline_parallel_microbatch_size);
}

Schedule schedule_of(const ParallelismConfig& c, const std::vector<StageUnits>& stages, int64_t microbatches) {
  constexpr int64_t kForward = 4, kInput = 5, kWeight = 3;
  const auto count = static_cast<int64_t>(stages.size());
  StageTimes expected;
  for (const StageUnits& s : stages) {
    const bool head = &s == &stages.back();
    const int64_t layers = s.end - s.first - (s.first == 0 ? 1 : 0) - (head ? 1 : 0);
    const int64_t of_head = head ? c.pipeline_parallel_last_stage_less_layers * (kForward + kInput + kWeight) : 0;
    expected.push_back({layers * kForward + of_head, layers * kInput, layers * kWeight});
    for (int64_t& time : expected.back()) time = std::max<int64_t>(time, 1);
  }
  if (!c.pipeline_parallel_schedule.starts_with("PipelineSchedule"))
    return make_schedule(c.pipeline_parallel_schedule, c.pipeline_parallel_degree, count, microbatches, std::move(expected));
  Schedule s = read_schedule(*c.pipeline_parallel_schedule_csv, c.pipeline_parallel_degree, count);
  s.expected = std::move(expected);
  check(microbatches % s.microbatches == 0,
        "parallelism.pipeline_parallel_schedule_csv = {}: the file's {} micro-batches do not divide the {} of a step "
        "(training.global_batch_size, parallelism.pipeline_parallel_microbatch_size)",
        *c.pipeline_parallel_schedule_csv, s.microbatches, microbatches);
  return repeated(s, microbatches / s.microbatches);
}

}  // namespace halftone::parallel
