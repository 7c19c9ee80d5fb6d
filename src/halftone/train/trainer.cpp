#include "halftone/train/trainer.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <future>
#include <optional>
#include <random>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/base/start_times.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/digest.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/range.h"
#include "halftone/train/alarms.h"
#include "halftone/train/batches.h"
#include "halftone/train/console.h"
#include "halftone/train/engine.h"
#include "halftone/train/phase_estimates.h"
#include "halftone/train/quantization_report.h"
#include "halftone/train/run_checkpoints.h"
#include "halftone/train/run_data.h"
#include "halftone/train/run_files.h"
#include "halftone/train/run_lock.h"
#include "halftone/train/run_metrics.h"
#include "halftone/train/run_tasks.h"
#include "halftone/train/schedule.h"
#include "halftone/train/sizing.h"
#include "halftone/train/step_guard.h"
#include "halftone/train/step_traces.h"
#include "halftone/train/stop_signal.h"
#include "halftone/train/tokenizer_setup.h"
#include "halftone/train/validate_settings.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// One line for all; -v says why each has no effect.
void report_accepted(const std::vector<AcceptedField>& fields) {
  if (fields.empty()) return;
  std::vector<std::string_view> names;
  for (const AcceptedField& f : fields) names.push_back(f.name);
  log_info("[compat] without effect here (-v says why): {}", fmt::join(names, ", "));
  for (const AcceptedField& f : fields) log_debug("{}", f.line);
}

// Where a run writes, and what.
std::string outputs_text(const JobConfig& c) {
  std::vector<std::string> parts;
  const bool saves = c.checkpoint.enable && !c.checkpoint.load_only;
  if (c.metrics.enable_jsonl) parts.emplace_back("metrics.jsonl");
  if (c.metrics.enable_tensorboard) parts.push_back(c.metrics.save_tb_folder + " (TensorBoard)");
  if (saves)
    parts.push_back(fmt::format("{} (every {} steps{})", c.checkpoint.folder, c.checkpoint.interval,
                                c.checkpoint.async_mode == "disabled" ? "" : ", in the background"));
  if (c.profiling.enable_profiling) parts.push_back(c.profiling.save_traces_folder);
  return fmt::format("Outputs in {}: {}{}", c.job.dump_folder,
                     parts.empty() ? "the configuration" : fmt::format("{}", fmt::join(parts, ", ")), saves ? "" : "; no checkpoints");
}

// The parts of a run, made in the order in which they need each other, and the loop over its steps.
class Trainer {
 public:
  Trainer(const LoadedConfig& loaded, Processes& processes, const std::string& version, const std::string& full_run)
      : config_(loaded.config), processes_(processes), version_(version), sizing_(loaded, full_run, processes.world()) {
    log_info("Starting job: {}", config_.job.description);
    for (const std::string& line : loaded.compat_lines) log_info("{}", line);
    report_accepted(loaded.accepted);
    for (const std::string& line : loaded.warnings) log_warning("{}", line);
    check_run(config_, processes_.world());
    processes_.compare(config_, version_);
  }

  RunSummary run();

 private:
  void open_folder();
  void build();
  void expect(int64_t vocab_size);
  void build_engine();
  void plan();
  void train();
  bool train_step(int64_t step);     // false at the end of the data
  bool observed_step(int64_t step);  // with the traces of [profiling]
  bool settle();                     // false after a rollback
  std::string take_alarms(int64_t step, const AlarmProbe& probe,
                          const StepResult& result);                 // logs them; the alarm that asks for a rollback
  bool roll_back(const std::string& reason, const RowCursor& rows);  // returns false
  void validate(int64_t step);
  void judge(int64_t step);  // by validation.tasks
  void save(bool last);
  std::string nothing_learned() const;  // why no step of this start updated the weights; "" when one did, or none was left
  RunSummary summary(RunEnd end) const;
  // Received by this process, or by any of several ranks, which agree on it in every step.
  int signal() const { return processes_.many() || !stop_ ? signal_ : stop_->signal(); }
  // Shows this rank's activity to the other ranks.
  std::optional<comm::Activity> activity(std::string_view what) const;

  JobConfig config_;
  Processes& processes_;
  std::string version_;
  Sizing sizing_;
  std::optional<RunLock> lock_;
  at::Device device_ = at::kCPU;
  DeviceInfo device_info_;
  RunProgress progress_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<PhaseEstimates> phases_;  // on a GPU
  std::optional<Estimate> estimate_;      // of the phase with most memory
  std::unique_ptr<Engine> engine_;
  RunFlops flops_;
  std::unique_ptr<CheckpointStore> store_;  // null without checkpoints
  std::optional<RunData> data_;
  std::optional<RunTasks> tasks_;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<Schedule> schedule_;
  std::optional<RunMetrics> metrics_;
  StepGuard guard_{config_.training, progress_};
  // The latest step while its result is unknown: a GPU computes it while the host queues the next step.
  struct Unsettled {
    double lr;
    int64_t tokens;
    RowCursor rows;
    at::Tensor source_sums;              // behind the step, if it is logged
    std::unique_ptr<AlarmProbe> alarms;  // of a measured step
  };
  std::optional<Unsettled> unsettled_;
  int64_t made_ = 0, labelled_ = 0, updated_ = 0;  // steps of this start: all, with a valid label, that updated the weights
  double validation_loss_ = 0;
  int signal_ = 0;  // received by any rank
  std::optional<StepTraces> traces_;
  std::optional<StartTimes> start_times_{std::in_place};  // until the first step has ended
  std::optional<StopSignal> stop_;                        // from the first step on: nothing would be lost before
};

void Trainer::open_folder() {
  const fs::path folder = config_.job.dump_folder;
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "job.dump_folder: cannot make {}: {}; choose a writable folder with free space", folder.string(), error.message());
  // Leftovers of an interrupted run may fill the disk: remove them before anything is written.
  remove_index_leftovers(token_cache_folder(config_));
  if (!processes_.first()) return;
  lock_.emplace(folder);
  if (config_.checkpoint.enable) remove_step_leftovers(folder / config_.checkpoint.folder);
  write_config_files(config_);
}

void Trainer::build() {
  start_times_->mark("program");
  device_ = select_device(config_.training.device, static_cast<int>(processes_.local_rank()));
  device_info_ = device_info(device_);
  const DebugConfig& debug = config_.debug;
  if (debug.deterministic) set_deterministic(debug.deterministic_warn_only);
  set_batch_invariant(debug.batch_invariant);
  log_info("halftone {} on {}: {}, {:.1f} GiB, {} threads{}{}", version_, device_.str(), device_info_.name, device_info_.capacity_gib,
           max_threads(), debug.batch_invariant ? ", batch-invariant" : "",
           !debug.deterministic            ? ""
           : debug.deterministic_warn_only ? ", deterministic or with a warning"
                                           : ", deterministic");
  if (device_.is_cpu()) report_idle_on_cpu(config_);
  start_times_->mark("device");
  open_folder();
  processes_.connect(config_, device_);
  const uint64_t seed = config_.debug.seed ? static_cast<uint64_t>(*config_.debug.seed) : std::random_device{}();
  progress_.seed = static_cast<uint64_t>(processes_.of_first(static_cast<int64_t>(seed)));
  if (!config_.debug.seed) log_info("debug.seed is not set: drew {}", progress_.seed);

  std::future<void> warm = std::async(std::launch::async, warm_up, device_);  // while the tokenizer is read
  processes_.one_of_host_first([&] { tokenizer_ = prepare_tokenizer(config_); });
  warm.get();
  processes_.compare("tokenizers (model.hf_assets_path)",
                     "digest " + digest_hex(tokenizer_->tokenizer_json() + "\n" + tokenizer_->tokenizer_config_json()));
  rows_per_step(config_.training, processes_.data_ranks());  // its error belongs before the model
  start_times_->mark("tokenizer");
  build_engine();
  start_times_->mark("model");
  flops_ = run_flops(*engine_, config_, device_info_);
  store_ = open_checkpoints(config_, processes_.checkpoint_ranks());
  // Last, because tokenising may take long: errors in model, recipe and folders are already known.
  processes_.one_of_host_first([&] { data_.emplace(config_, *tokenizer_, *engine_, processes_); });
  for (const auto& [what, own] : data_->contents()) processes_.compare(what, own);
  if (!config_.validation.tasks.empty()) tasks_.emplace(config_, *tokenizer_, *engine_, processes_);
  checkpoints_.emplace(RunCheckpoints::Run{config_, *tokenizer_, *engine_, *data_, progress_, processes_.checkpoint_ranks()}, store_.get());
  start_times_->mark("data");
}

// Before the memory is allocated: the prediction precedes an out-of-memory message.
void Trainer::expect(int64_t vocab_size) {
  try {
    const Hardware hardware = hardware_of(device_);
    phases_ =
        estimate_phases(config_, vocab_size, estimate_device(device_info_.name, hardware, device_info_.capacity_gib), processes_.world());
    estimate_ = phases_->costliest();
  } catch (const Error& e) {  // the engine reports a wrong configuration
    return log_debug("no estimate: {}", e.what());
  }
  log_info("Predicted for a step: {}{}", estimate_line(*estimate_),
           estimate_->work.empty() ? "" : fmt::format(", {:.0f} ms", estimate_->step_ms()));
  log_debug("{}", estimate_text(*estimate_));
  if (!estimate_->fits()) log_warning("a step may not fit in device memory; {}", estimate_advice(*estimate_));
}

void Trainer::build_engine() {
  Engine::Options options;
  options.axes = processes_.axes();
  options.device = device_, options.seed = progress_.seed, options.vocab_size = tokenizer_->vocab_size();
  options.positions = std::max(config_.training.seq_len, config_.validation.enable ? config_.validation.seq_len : 0);
  if (!device_.is_cpu() && processes_.first()) expect(options.vocab_size);
  try {
    engine_ = std::make_unique<Engine>(config_, options);
  } catch (const c10::OutOfMemoryError& e) {
    if (!estimate_) throw;
    fail("{}", out_of_memory_text(e.what_without_backtrace(), "while creating the model", *estimate_));
  }
  const nn::ModelSize& size = engine_->size();
  log_debug("hyper-parameters: {}", engine_->built().description->json().dump());
  if (config_.checkpoint.last_save_in_hf) {
    if (const HfFormat* codes = single_format(config_.checkpoint.export_dtype))
      check_hf_format(*codes, engine_->built().description->family());
    for (const nn::Parameter* p : engine_->store().parameters()) {
      check(!p->added,
            "checkpoint.last_save_in_hf: {}, which a recipe adds to the model, has no place in {}; turn last_save_in_hf off or use "
            "another scheme",
            p->fqn, engine_->built().description->family().hf_architecture);
    }
  }
  log_info("Model {} {} size: {} total parameters; {} layers of width {}, {} heads ({} KV heads), vocabulary {}", config_.model.name,
           config_.model.flavor, thousands(static_cast<double>(size.parameters)), size.layers, thousands(static_cast<double>(size.dim)),
           size.heads, size.kv_heads, thousands(static_cast<double>(size.vocab)));
  if (engine_->recipe_lines().empty())
    log_info("quantize: none, GEMMs in {}",
             config_.training.dtype == "bfloat16" ? config_.training.dtype : config_.training.mixed_precision_param);
  for (const std::string& line : engine_->recipe_lines()) log_info("{}", line);
  for (const auto& phase : engine_->recipes().phases()) {
    if (phase.index > 0)
      for (const std::string& line : phase.lines) log_debug("phase {}: {}", phase.index + 1, line);
  }
  for (const std::string& line : engine_->memory_table()) log_info("{}", line);
}

// Sets up what depends on the number of steps, which training.minutes determines only here.
void Trainer::plan() {
  sizing_.measure(config_, *engine_, data_->loader(), data_->validation(), progress_.step,
                  [&](int64_t value) { return processes_.of_first(value); });
  if (sizing_.taken() && processes_.first()) write_config_files(config_);
  engine_->set_scheduled_steps(scheduled_steps(config_));
  for (const std::string& line : plan_lines(engine_->recipes(), config_.training.steps, phases_ ? &*phases_ : nullptr))
    log_info("{}", line);
  schedule_.emplace(schedule_of(config_));
  for (const std::string& w : schedule_->warnings()) log_warning("{}", w);
  log_info("{}", outputs_text(config_));
  const std::optional<int64_t> from = checkpoints_->started_from();
  metrics_.emplace(config_, processes_, device_, device_info_, flops_, version_,
                   from && progress_.step > 0 ? std::optional(progress_.step) : std::nullopt);
}

std::optional<comm::Activity> Trainer::activity(std::string_view what) const {
  if (!processes_.many()) return std::nullopt;
  return std::optional<comm::Activity>(std::in_place, *processes_.watch(), what);
}

bool Trainer::train_step(int64_t step) {
  const auto doing = activity(fmt::format("step {}", step));
  std::optional<std::vector<MicroBatch>> batches;
  {
    const auto loading = activity("data load");
    batches = data_->next_step([this] { return stop_ && stop_->signal() != 0; });
  }
  const StepAgreement agreed = agree_on_step(processes_, batches, stop_ ? stop_->signal() : 0, data_->wait_of_step());
  signal_ = agreed.signal;
  if (!agreed.has_rows) return false;
  std::optional<QuantizationReport> quantization;
  if (config_.metrics.log_quantization && metrics_->is_logged(step)) quantization.emplace(data_->loader().pads());
  std::unique_ptr<AlarmProbe> alarms;
  if (alarms_measure(config_, step)) alarms = std::make_unique<AlarmProbe>(config_.alarms, data_->loader().pads());
  engine_->accumulate(*batches, step, agreed.valid_labels);
  if (alarms) alarms->stop();
  if (!settle()) {  // these gradients belong to the step after a bad one
    engine_->drop_gradients();
    return true;
  }
  const double factor = schedule_->factor(progress_.last_epoch);
  if (store_) store_->before_update();
  engine_->update(factor, guard_.loss_limit());
  if (quantization) {  // before a non-finite step may end the run
    quantization->write(step, metrics_->logger(), [this](const std::string& own) { return processes_.of_stages(own); });
  }
  quantization.reset();
  metrics_->count_waits(agreed);
  progress_.step = step, progress_.tokens_seen += agreed.tokens, ++progress_.last_epoch;
  unsettled_ = {config_.optimizer.lr * factor, agreed.tokens, data_->rows(), {}, std::move(alarms)};
  if (const at::Tensor& sums = engine_->source_sums(); sums.defined() && metrics_->is_logged(step)) unsettled_->source_sums = sums.clone();
  return true;
}

// Handles the result of the step that was queued last.
bool Trainer::settle() {
  const auto last = std::exchange(unsettled_, std::nullopt);
  if (!last) return true;
  const int64_t step = progress_.step;
  const StepResult r = engine_->result();
  ++made_, labelled_ += r.valid_labels > 0, updated_ += r.updated;
  if (start_times_) {
    start_times_->mark("first step");
    log_debug("step {} ended {}", step, start_times_->text());
    start_times_.reset();
    processes_.first_step_is_done();
  }
  metrics_->count_step(last->tokens);
  const std::string alarm = last->alarms && r.valid_labels > 0 ? take_alarms(step, *last->alarms, r) : "";
  if (r.valid_labels == 0) {
    metrics_->logger().log_event(step, "no valid label in this step: no update");
  } else if (!alarm.empty()) {
    guard_.rolls_back(step, alarm);
    return roll_back(alarm, last->rows);
  } else if (r.updated) {
    guard_.updated(step, r.loss_sum / static_cast<double>(r.valid_labels));
    const std::vector<std::string>& sources = data_->sources();
    if (metrics_->is_logged(step) && !sources.empty()) metrics_->take_sources(sources, last->source_sums, processes_);
    if (metrics_->is_logged(step)) metrics_->log_step(step, r, last->lr, progress_.tokens_seen, data_->take_wait());
  } else if (const StepGuard::Refusal refusal = guard_.refused(step, r); !refusal.rollback) {
    metrics_->logger().log_event(step, refusal.what);
  } else {
    return roll_back(refusal.what, last->rows);
  }
  return true;
}

bool Trainer::roll_back(const std::string& reason, const RowCursor& rows) {
  const int64_t step = progress_.step, full = checkpoints_->go_back(reason, rows);
  metrics_->logger().rewind(
      progress_.step, fmt::format("{}; rolling back to the checkpoint of step {} and skipping the rows of step {}", reason, full, step));
  return false;
}

std::string Trainer::take_alarms(int64_t step, const AlarmProbe& probe, const StepResult& result) {
  const AlarmVerdict verdict = judge_alarms(config_.alarms, step, processes_.texts(probe.read(config_.alarms, result)));
  metrics_->logger().log_alarms(step, verdict.scalars);
  const std::string all = fmt::format("{}", fmt::join(verdict.lines, "; "));
  if (verdict.action == "stop") throw NonFiniteError(all + "; the action is stop: resume from an earlier checkpoint with another setting");
  if (verdict.action == "rollback") return all;
  for (const std::string& line : verdict.lines) metrics_->logger().log_event(step, line);
  return "";
}

bool Trainer::observed_step(int64_t step) {
  traces_->before(step);
  try {
    const Range range("ProfilerStep#{}", step);  // the name by which tools of PyTorch find steps
    if (!train_step(step)) return false;
  } catch (const c10::OutOfMemoryError& e) {
    traces_->out_of_memory(step);
    if (!estimate_) throw;
    fail("{}", out_of_memory_text(e.what_without_backtrace(), fmt::format("in step {}", step), *estimate_));
  }
  if (progress_.step == step) metrics_->leave_out(traces_->after(step));  // no rollback
  return true;
}

void Trainer::validate(int64_t step) {
  if (!data_->validation()) return;
  const Stopwatch watch;
  const auto doing = activity("validation");
  const Evaluation evaluation = evaluate(*engine_, *data_->validation(), processes_);
  validation_loss_ = evaluation.loss();
  metrics_->log_validation(step, evaluation);
  metrics_->leave_out(watch.seconds());
}

void Trainer::judge(int64_t step) {
  const Stopwatch watch;
  const auto doing = activity("tasks");
  metrics_->logger().log_tasks(step, tasks_->evaluate());
  metrics_->leave_out(watch.seconds());
}

void Trainer::save(bool last) {
  const Stopwatch watch;
  const auto doing = activity("saving a checkpoint");
  checkpoints_->save(last);
  metrics_->leave_out(watch.seconds());
}

void Trainer::train() {
  const int64_t steps = config_.training.steps;
  if (steps == 0) {
    validate(0);
    if (tasks_) judge(0);
    return;
  }
  stop_.emplace();
  constexpr int64_t kShortRun = 50;
  const int64_t first = progress_.step + 1;
  const bool estimates = !sizing_.measured() && steps - progress_.step >= kShortRun;
  const int64_t rows = data_->loader().options().global_batch, tokens = rows * config_.training.seq_len;
  log_info("Training starts at step {} of {} ({} of warmup): {} rows of {} tokens per step, {} rows per micro-batch, {} tokens in total",
           first, steps, schedule_->warmup_steps(), rows, thousands(static_cast<double>(config_.training.seq_len)),
           config_.training.local_batch_size, thousands(static_cast<double>(tokens * (steps - first + 1))));
  if (const std::string alarms = alarms_text(config_.alarms); !alarms.empty())
    log_info("Alarms every {} steps: {}", config_.alarms.freq, alarms);
  traces_.emplace(config_, processes_.rank(), device_, progress_.step + 1);
  metrics_->start_interval();
  if (!data_->sources().empty()) engine_->sum_sources(static_cast<int64_t>(data_->sources().size()));
  while (progress_.step < steps && signal() == 0) {
    const int64_t step = progress_.step + 1;
    const Stopwatch watch;
    const bool last = step == steps, validates = data_->validation() && (step == 1 || step % config_.validation.freq == 0 || last);
    const bool judges = tasks_ && (step % config_.validation.tasks_freq == 0 || last);
    const bool due = step % config_.checkpoint.interval == 0 || (step == 1 && config_.checkpoint.enable_first_step_checkpoint);
    const bool saves = last || due;
    if (!observed_step(step)) {
      if (settle()) break;
      continue;  // rolled back to where data remain
    }
    const bool alone = estimates && step <= first + 1;  // times the second step: the first loads kernels and selects GEMM algorithms
    if (validates || judges || saves || alone || device_.is_cpu()) settle();
    if (progress_.step != step) continue;  // rolled back
    if (alone && step > first) {
      const double seconds = watch.seconds();
      log_info("Estimate: {:.0f} ms per step, {} for {} steps", seconds * 1e3, duration_text(seconds * static_cast<double>(steps - step)),
               steps - step);
    }
    if (validates) validate(step);
    if (judges) judge(step);
    if (saves) save(last);
  }
  settle();
  if (progress_.step < steps) {
    if (signal() != 0 && !store_) log_info("checkpoint.enable is false: no checkpoint is saved");
    save(false);
  }
  if (store_) store_->wait();
}

std::string Trainer::nothing_learned() const {
  if (updated_ > 0 || made_ == 0) return "";
  if (labelled_ == 0)
    return fmt::format("no step updated a weight: no label was valid in {} steps; check the training data and its packing", made_);
  return fmt::format(
      "no step updated a weight: all {} updates were skipped (training.nonfinite = \"skip\"), because loss or gradient norm was not finite "
      "or the loss exceeded training.spike_factor times its median; lower optimizer.lr",
      labelled_);
}

RunSummary Trainer::summary(RunEnd end) const {
  RunSummary s;
  s.end = end, s.signal = signal(), s.step = progress_.step, s.validation_loss = validation_loss_;
  s.device = device_.is_cpu() ? "cpu" : "cuda";
  if (const auto saved = checkpoints_->last_saved(); store_ && saved) s.checkpoint = store_->step_folder(*saved).string();
  s.resumable = store_ && store_->resumable();
  s.size = {config_.training.steps, config_.lr_scheduler.warmup_steps};
  return s;
}

RunSummary Trainer::run() {
  build();
  const bool seed = config_.checkpoint.create_seed_checkpoint;
  if (seed) {
    check(store_ != nullptr, "checkpoint.create_seed_checkpoint needs checkpoint.enable");
    const std::vector<int64_t> steps = store_->valid_steps();
    check(steps.empty(), "checkpoint.create_seed_checkpoint: expected a run without steps, found {}; choose another job.dump_folder",
          steps.empty() ? "" : store_->step_folder(steps.back()).string());
  }
  if (store_) sizing_.keep(config_, *store_);
  engine_->set_scheduled_steps(scheduled_steps(config_));
  if (!checkpoints_->load() && !seed) {
    log_info("run complete at step {}", progress_.step);
    return summary(RunEnd::already_complete);
  }
  if (seed) {
    checkpoints_->save_seed();
    return summary(RunEnd::completed);
  }
  start_times_->mark("weights");
  plan();
  start_times_->mark("plan");
  const Stopwatch watch;
  train();
  if (signal() != 0) {
    log_info("stopped by signal {} after step {}; the same command resumes there", signal(), progress_.step);
    return summary(RunEnd::interrupted);
  }
  if (const std::string reason = nothing_learned(); !reason.empty()) {
    RunSummary s = summary(RunEnd::learned_nothing);
    s.reason = reason, s.finite = labelled_ == 0;
    return s;
  }
  log_info("Training completed after {}{}", duration_text(watch.seconds()),
           data_->validation() ? fmt::format(", validation loss {:.4f}", validation_loss_) : "");
  return summary(RunEnd::completed);
}

}  // namespace

RunSummary run_training(const LoadedConfig& loaded, Processes& processes, const std::string& version, const std::string& full_run) {
  return Trainer(loaded, processes, version, full_run).run();
}

}  // namespace halftone
