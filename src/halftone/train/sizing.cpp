#include "halftone/train/sizing.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "halftone/base/cpu.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/formats/support.h"
#include "halftone/ops/device.h"
#include "halftone/train/batches.h"
#include "halftone/train/console.h"
#include "halftone/train/run_state.h"
#include "halftone/train/silence.h"

namespace halftone {
namespace {

constexpr size_t kFewestMeasured = 2, kMostMeasured = 3;  // steps
constexpr double kMeasuredSeconds = 3;                    // enough with the fewest steps
constexpr double kSavedBytesPerSecond = 2e8;              // a modest disk, checksums included

struct Measured {
  double step = 0, evaluation = 0;  // seconds; the median of several, since other programs may run
};

Measured seconds_of(const JobConfig& config, const Engine::Options& options, std::span<const MicroBatch> batches) {
  const Silence silence;
  Engine engine(config, options);
  engine.initialize();
  const auto seconds = [&](auto&& work) {
    const Stopwatch watch;
    work();
    synchronize(options.device);
    return watch.seconds();
  };
  int64_t step = 0;
  const auto one_step = [&] { engine.step(batches, ++step, 0.0); };
  one_step();  // allocates, packs weights and selects kernels
  std::vector<double> steps;
  for (double sum = 0; steps.size() < kFewestMeasured || (steps.size() < kMostMeasured && sum < kMeasuredSeconds); sum += steps.back())
    steps.push_back(seconds(one_step));
  const auto evaluation = [&] { return seconds([&] { engine.evaluate(batches.front()); }); };
  std::sort(steps.begin(), steps.end());
  return {steps[(steps.size() - 1) / 2], std::min(evaluation(), evaluation())};
}

JobConfig unquantised(JobConfig config, const std::string& dtype) {
  config.quantize = {}, config.model.converters.clear();
  config.training.mixed_precision_param = dtype;
  if (dtype == "float32") config.training.dtype = dtype, config.optimizer.stochastic_rounding = false;
  return config;
}

std::string milliseconds(double seconds) { return thousands(seconds * 1e3); }

constexpr double kPays = 1.15;  // times faster than the fastest dtype, below which a recipe hardly pays

// "int8 410 ms a step here, bfloat16 650, float32 1,500", and what follows from that
void compare(const JobConfig& config, const Engine::Options& options, std::span<const MicroBatch> batches, double own) {
  const QuantizeConfig& quantize = config.quantize;
  const bool one_scheme = !quantize.scheme.is_none() && quantize.scheme.table.empty();
  const std::string name = one_scheme ? quantize.scheme.name : "this recipe";
  std::string line = fmt::format("{} {} ms a step here", name, milliseconds(own)), fastest = name;
  double least = own, others = std::numeric_limits<double>::infinity();
  for (const char* dtype : {"bfloat16", "float32"}) {
    const double seconds = seconds_of(unquantised(config, dtype), options, batches).step;
    line += fmt::format(", {} {}", dtype, milliseconds(seconds));
    others = std::min(others, seconds);
    if (seconds < least) least = seconds, fastest = dtype;
  }
  const auto scheme = find_linear_recipe(name);
  const bool integers = scheme && is_integer(scheme->x_forward), dots = cpu_features().vnni || cpu_features().avxvnni;
  if (fastest != name) {
    line += fmt::format(": {} is the fastest on this CPU; training {} as configured", fastest, name);
  } else if (others < kPays * own) {
    line += fmt::format(": {} gains little on this CPU{}", name, integers && !dots ? ", which has no VNNI" : "");
  }
  log_info("{}", line);
}

}  // namespace

double run_seconds(const RunCosts& costs, const JobConfig& config, int64_t steps) {
  // Number of multiples of `freq`, plus the last step, and the first one with `at_first`.
  const auto times = [&](int64_t freq, bool at_first) {
    const bool first_apart = at_first && freq > 1 && steps > 1;
    return static_cast<double>(steps / freq + (steps % freq != 0 ? 1 : 0) + (first_apart ? 1 : 0));
  };
  double seconds = static_cast<double>(steps) * costs.step;
  if (config.validation.enable) seconds += costs.validation * times(config.validation.freq, true);
  if (config.checkpoint.enable) seconds += costs.save * times(config.checkpoint.interval, config.checkpoint.enable_first_step_checkpoint);
  return seconds;
}

RunSize fitting_size(const RunCosts& costs, const JobConfig& config) {
  const int64_t most = config.training.steps;
  const double budget = 60 * config.training.minutes;
  int64_t steps = most;
  if (run_seconds(costs, config, most) > budget) {
    int64_t fits = 0, beyond = (most + 9) / 10;  // in units of ten steps
    while (fits + 1 < beyond) {
      const int64_t middle = fits + (beyond - fits) / 2;
      (run_seconds(costs, config, 10 * middle) <= budget ? fits : beyond) = middle;
    }
    steps = std::clamp(10 * fits, std::min(kLeastSteps, most), most);
  }
  const double share = static_cast<double>(steps) / static_cast<double>(most);
  return {steps, std::llround(static_cast<double>(config.lr_scheduler.warmup_steps) * share)};
}

std::optional<RunSize> saved_size(const LoadedStep& step) {
  using Pointer = nlohmann::json::json_pointer;
  const nlohmann::json state = saved_state(step);
  const Pointer steps("/config/training/steps"), warmup("/config/lr_scheduler/warmup_steps");
  for (const Pointer& at : {steps, warmup}) {
    if (!state.contains(at) || !state[at].is_number_integer() || state[at].get<int64_t>() < 0) return std::nullopt;
  }
  const RunSize size{state[steps].get<int64_t>(), state[warmup].get<int64_t>()};
  return size.steps > 0 ? std::optional(size) : std::nullopt;
}

Sizing::Sizing(const LoadedConfig& loaded, std::string full_run, int64_t processes)
    : full_run_(std::move(full_run)),
      own_steps_(loaded.from_command_line("training.steps") && !loaded.from_command_line("training.minutes")),
      own_warmup_(loaded.from_command_line("lr_scheduler.warmup_steps")) {
  const ParallelismConfig& p = loaded.config.parallelism;
  const bool data_alone = p.tensor_parallel_degree == 1 && p.context_parallel_degree == 1 && p.pipeline_parallel_degree == 1;
  check(processes == 1 || data_alone || own_steps_ || loaded.config.training.minutes == 0,
        "training.minutes: only data-parallel ranks measure how long a run takes; with tensor, context or pipeline parallelism set "
        "--training.steps N on the command line");
}

void Sizing::take(JobConfig& config, const RunSize& size) {
  if (!own_steps_) config.training.steps = size.steps;
  if (!own_warmup_) config.lr_scheduler.warmup_steps = size.warmup_steps;
  config.training.minutes = 0;
  taken_ = true;
}

void Sizing::keep(JobConfig& config, const CheckpointStore& store) {
  if (config.training.minutes == 0) return;
  for (const bool full : {false, true}) {
    const int64_t wanted = config.checkpoint.load_step;
    const std::optional<int64_t> number = wanted >= 0 ? std::optional(wanted) : store.latest_valid(full);
    if (!number || *number == 0) continue;  // step 0 belongs to no run yet
    if (const std::optional<RunSize> size = saved_size(store.open(*number))) return take(config, *size);
  }
}

void Sizing::measure(JobConfig& config, const Engine& engine, DataLoader& loader, const DataLoader* validation, int64_t step,
                     const std::function<int64_t(int64_t)>& of_first) {
  if (config.training.minutes == 0) return;
  const int64_t all = config.training.steps;
  const bool sized = !own_steps_ && all > 0 && step == 0;
  const std::vector<MicroBatch> batches = sized ? coming_step(loader, engine) : std::vector<MicroBatch>{};
  if (batches.empty()) return take(config, {all, config.lr_scheduler.warmup_steps});
  log_info("Measuring a few steps, to train for about {} on this machine (training.minutes)", duration_text(60 * config.training.minutes));
  Engine::Options options = engine.options();
  options.axes = nullptr;  // ranks measure side by side, without communication
  const Measured own = seconds_of(config, options, batches);
  const bool quantised = !config.quantize.scheme.is_none() || !config.quantize.recipe.empty() || !config.model.converters.empty();
  if (quantised && options.device.is_cpu()) compare(config, options, batches, own.step);
  RunCosts costs;
  costs.step = own.step;
  const auto rows = static_cast<double>(config.validation.local_batch_size * config.validation.seq_len);
  if (validation) {
    costs.validation =
        own.evaluation * rows / static_cast<double>(batches.front().labels.numel()) * static_cast<double>(validation->steps_per_pass());
  }
  costs.save = 12 * static_cast<double>(engine.size().parameters) / kSavedBytesPerSecond;  // weights and two moments
  RunSize size = fitting_size(costs, config);
  size = {of_first(size.steps), of_first(size.warmup_steps)};
  const auto time = [&](int64_t steps) { return duration_text(run_seconds(costs, config, steps)); };
  if (size.steps == all) {
    log_info("All {} steps take about {}, with validation and checkpoints", all, time(all));
  } else {
    log_info("Training takes {} of {} steps, about {} with validation and checkpoints{}", size.steps, all, time(size.steps),
             size.steps == kLeastSteps ? "; fewer steps show little" : "");
    if (!full_run_.empty()) log_info("All {} take about {} here: {}", all, time(all), full_run_);
  }
  take(config, size);
  malloc_trim(0);  // returns the models' memory to the system
  reset_peak_memory(options.device);
  measured_ = true;
}

}  // namespace halftone
