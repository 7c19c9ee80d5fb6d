// halftone bench train: steps of a configuration on random tokens.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"
#include "halftone/base/start_times.h"
#include "halftone/base/stopwatch.h"
#include "halftone/cli/bench_breakdown.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_pipeline.h"
#include "halftone/cli/bench_timer.h"
#include "halftone/cli/parse.h"
#include "halftone/config/load.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/device.h"
#include "halftone/train/engine.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/processes.h"
#include "halftone/train/run_data.h"
#include "halftone/train/schedule.h"
#include "halftone/train/validate_settings.h"

namespace halftone {
namespace {

// Rows of a step from `first` on; their tokens do not depend on the rank.
MicroBatch random_batch(int64_t first, int64_t rows, int64_t seq, int64_t vocab, at::Device device) {
  const auto draw = [&](const char* purpose) {
    at::Tensor t = at::empty({rows, seq}, at::kLong);
    const PhiloxKey key = philox_key(0, purpose);
    int64_t* p = t.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < t.numel(); ++i) p[i] = philox(key, first * seq + i)[0] % vocab;
    return t.to(device);
  };
  MicroBatch b;
  b.input.tokens = draw("tokens"), b.labels = draw("labels"), b.valid_labels = rows * seq;
  return b;
}

constexpr const char* kTrainHelp =
    "halftone bench train --config FILE [--section.field value ...] [--own-amax] [--breakdown]\n"
    "                     [--batch-invariant]\n\n"
    "Trains the configuration's model on random tokens and prints one line a step. The last line is JSON: tokens/s a rank and ms of the\n"
    "median step of the second half, peak memory of the largest rank, seconds from launch to the end of the first step, losses, and\n"
    "what was measured. With a pipeline it also has the ranks' measured and expected bubbles.\n\n"
    "  --own-amax   quantizers compute the amax of their input instead of reading it from the op that wrote the input\n"
    "  --breakdown  records three more steps on rank 0's GPU and prints its time by kind of work, exposed communication by mesh axis,\n"
    "               and the largest kernels\n"
    "  --batch-invariant  then repeats the second half with and without debug.batch_invariant in turn and prints their times and ratio\n\n"
    "training.steps sets the number of steps, at least 4. The other options are those of halftone train (halftone train --help).\n\n"
    "  halftone bench train --config recipes/demo.toml --quantize.scheme int8 --training.steps 20\n";

// Times of a step with and without debug.batch_invariant, pair by pair, in milliseconds.
struct InvariantTimes {
  double with = 0, without = 0;
};
template <class Train>
InvariantTimes time_invariance(int64_t pairs, at::Device device, Train&& train) {
  std::vector<double> ms[2];
  for (int64_t i = 0; i <= pairs; ++i) {
    for (const bool on : {false, true}) {
      set_batch_invariant(on);
      const Stopwatch watch;
      train();
      synchronize(device);
      if (i > 0) ms[on].push_back(watch.seconds() * 1e3);  // the first pair warms up
    }
  }
  return {bench::median(ms[1]), bench::median(ms[0])};
}

void bench_steps(const JobConfig& c, Processes& processes, bool breakdown, bool invariance) {
  check(c.job.config_file.has_value(), "bench train: expected --config FILE, found none; for example --config recipes/demo.toml");
  check(c.training.steps >= 4, "bench train: training.steps = {}; expected at least 4, of which the second half is timed",
        c.training.steps);
  check_run(c, processes.world());
  StartTimes start_times;
  start_times.mark("program");
  Engine::Options options;
  options.device = select_device(c.training.device, static_cast<int>(processes.local_rank())), options.positions = c.training.seq_len;
  check(!breakdown || !options.device.is_cpu(), "bench train: --breakdown needs a GPU, found training.device {}; leave it out on a CPU",
        options.device.str());
  options.seed = static_cast<uint64_t>(c.debug.seed.value_or(0));
  start_times.mark("device");
  processes.connect(c, options.device);
  options.axes = processes.axes();
  check(!invariance || options.device.is_cpu() || c.training.disable_cuda_graphs,
        "bench train: --batch-invariant changes the kernels from step to step; add --training.disable_cuda_graphs");
  set_batch_invariant(invariance || c.debug.batch_invariant);  // the engine refuses recipes that it cannot be asked of
  Engine engine(c, options);
  set_batch_invariant(c.debug.batch_invariant);
  start_times.mark("model");
  engine.initialize();
  start_times.mark("weights");
  const int64_t rows = engine.pipeline() != nullptr ? engine.pipeline()->microbatch_rows() : c.training.local_batch_size;
  const int64_t accumulate = rows_per_step(c.training, processes.data_ranks()) / rows / processes.data_ranks();
  std::vector<MicroBatch> batches;
  for (int64_t m = 0; m < accumulate; ++m) {
    const int64_t first = (m * processes.data_ranks() + processes.data_rank()) * rows;
    batches.push_back(engine.own_part(random_batch(first, rows, c.training.seq_len, engine.size().vocab, options.device)));
  }
  const Schedule schedule(
      {c.training.steps, c.lr_scheduler.warmup_steps, c.lr_scheduler.decay_ratio, decay_type(c.lr_scheduler.decay_type), 0});
  const auto train = [&](int64_t step, double lr_factor) {
    engine.accumulate(batches, step, accumulate * rows * c.training.seq_len * processes.data_ranks());
    engine.update(lr_factor);
    return engine.result();
  };
  std::vector<double> seconds, losses;
  for (int64_t step = 1; step <= c.training.steps; ++step) {
    const Stopwatch watch;
    const StepResult r = train(step, schedule.factor(step - 1));
    synchronize(options.device);
    seconds.push_back(watch.seconds());
    if (step == 1) start_times.mark("first step");
    losses.push_back(r.loss_sum / static_cast<double>(r.valid_labels));
    if (!processes.first()) continue;
    print(fmt::format("step {}: {:.1f} ms, loss {:.3f}, grad_norm {:.3f}", step, seconds.back() * 1e3, losses.back(), r.grad_norm));
    std::fflush(stdout);
  }
  const double median = bench::median({seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end()});
  const auto tokens =
      static_cast<double>(accumulate * rows * c.training.seq_len * processes.data_ranks()) / static_cast<double>(processes.world());
  double reserved = 0;
  for (const Processes::Said& said : processes.exchange({peak_memory(options.device).reserved_gib})) reserved = std::max(reserved, said[0]);
  nlohmann::ordered_json out = {{"tokens_per_second", tokens / median},
                                {"ms_per_step", median * 1e3},
                                {"peak_memory_gib", reserved},
                                {"first_step_seconds", start_times.seconds()},
                                {"loss_first", losses.front()},
                                {"loss_last", losses.back()},
                                {"losses", losses},
                                {"scheme", c.quantize.scheme.name},
                                {"mixed_precision_param", c.training.mixed_precision_param},
                                {"device", options.device.str()},
                                {"device_name", device_info(options.device).name},
                                {"processes", processes.world()},
                                {"mesh", processes.degrees()},
                                {"threads", max_threads()},
                                {"parameters", engine.size().parameters},
                                {"local_batch_size", c.training.local_batch_size},
                                {"seq_len", c.training.seq_len},
                                {"steps", c.training.steps},
                                {"activation_checkpoint", c.activation_checkpoint.mode},
                                {"model", engine.built().description->json()}};
  log_debug("the first step ended {}", start_times.text());
  int64_t step = c.training.steps;
  std::string bubbles;
  if (engine.pipeline() != nullptr) {
    const bench::Bubbles b =
        bench::measure_bubbles(engine, processes, accumulate, [&] { train(++step, schedule.factor(c.training.steps - 1)); });
    out["bubbles"] = {{"schedule", b.schedule}, {"passes", b.passes}, {"measured", b.measured}};
    bubbles = "\n" + bench::bubbles_text(b);
  }
  std::string ratio;
  if (invariance) {
    const InvariantTimes t = time_invariance(std::max<int64_t>(c.training.steps / 2, 2), options.device,
                                             [&] { train(++step, schedule.factor(c.training.steps - 1)); });
    out["batch_invariant"] = {{"ms_per_step", t.with}, {"ordinary_ms_per_step", t.without}, {"ratio", t.with / t.without}};
    set_batch_invariant(c.debug.batch_invariant);
    ratio = fmt::format("\nbatch-invariant: {:.1f} ms a step, ordinary {:.1f} ms, ratio {:.3f}\n", t.with, t.without, t.with / t.without);
  }
  if (processes.first()) print(out.dump() + "\n" + bubbles + ratio);
  if (breakdown) {
    const bench::Breakdown b = bench::record_breakdown(options.device, [&] {
      train(++step, schedule.factor(c.training.steps - 1));
      synchronize(options.device);
    });
    if (processes.first()) print("\n" + bench::breakdown_text(b, 20));
  }
}

}  // namespace

int bench::train_command(Arguments given) {
  if (asked_help(given)) return print(kTrainHelp), 0;
  std::vector<std::string> args(given.begin(), given.end());
  const auto take = [&](const char* option) {
    return std::erase_if(args, [&](const std::string& word) { return is_option(word, option); }) != 0;
  };
  amax_use().from_producers = !take("--own-amax");
  const bool breakdown = take("--breakdown"), invariance = take("--batch-invariant");
  const Environment environment = read_environment();
  LoadedConfig loaded = load_config(args, {environment.world_size});
  Processes processes(environment, loaded.config.comm);
  processes.run([&] {
    resolve_model(loaded.config);
    bench_steps(loaded.config, processes, breakdown, invariance);
  });
  return 0;
}

}  // namespace halftone
