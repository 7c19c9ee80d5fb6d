#include "halftone/train/trainer.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/data/loader.h"
#include "halftone/ops/device.h"
#include "halftone/train/batches.h"
#include "halftone/train/console.h"
#include "halftone/train/engine.h"
#include "halftone/train/flops.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/metrics.h"
#include "halftone/train/quantization_report.h"
#include "halftone/train/run_differences.h"
#include "halftone/train/run_files.h"
#include "halftone/train/run_lock.h"
#include "halftone/train/run_state.h"
#include "halftone/train/schedule.h"
#include "halftone/train/sizing.h"
#include "halftone/train/stop_signal.h"
#include "halftone/train/supported.h"
#include "halftone/train/tokenizer_setup.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

constexpr int kMaxSkipped = 10;  // non-finite steps in a row before "skip" and "rollback" give up

class Trainer {
 public:
  Trainer(const LoadedConfig& loaded, const std::string& version, const std::string& full_run)
      : config_(loaded.config), version_(version), sizing_(loaded, full_run) {
    for (const std::string& line : loaded.compat_lines) log_info("{}", line);
    for (const std::string& line : loaded.warnings) log_warning("{}", line);
    refuse_unsupported(config_);
  }

  RunSummary run();

 private:
  void open_folder();
  void build();
  void plan();
  bool load();  // false: the run is complete already
  bool resume(int64_t number);
  void check_same_model(const LoadedStep& step) const;
  void warn_of_differences(const LoadedStep& step) const;
  bool excluded(const char* part) const;
  void restore(const LoadedStep& step, bool everything);
  void train();
  bool train_step(int64_t step);
  bool is_logged(int64_t step) const { return step == 1 || step % config_.metrics.log_freq == 0 || step == config_.training.steps; }
  void log_step(int64_t step, const StepResult& r, double lr);
  void validate(int64_t step);
  void save(int64_t step, bool last);
  std::optional<std::vector<MicroBatch>> next_batches();
  void refuse(int64_t step, const std::string& what);
  void rollback(int64_t step, const std::string& reason);
  double median_loss() const;
  RunSummary summary(RunEnd end) const;

  JobConfig config_;
  std::string version_;
  Sizing sizing_;
  std::optional<RunLock> lock_;
  at::Device device_ = at::kCPU;
  DeviceInfo device_info_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<DataLoader> loader_, validation_;
  std::unique_ptr<Engine> engine_;
  std::optional<Schedule> schedule_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<MetricsLogger> metrics_;
  RunProgress progress_;
  int64_t global_batch_ = 0, last_saved_ = -1;
  std::optional<int64_t> started_from_;            // step of this run's folder that was loaded
  RowCursor rows_;                                 // where the current step's begin
  std::set<RowCursor> bad_rows_;                   // those of steps that a rollback leaves out
  int64_t rollbacks_ = 0, furthest_bad_step_ = 0;  // rollbacks since a step beyond that one
  nlohmann::json first_rows_;                      // the loader's state before it gave any
  double validation_loss_ = 0, flops_per_token_ = 0, peak_flops_ = 0;
  Clock::time_point interval_start_;
  double data_seconds_ = 0;
  int64_t interval_tokens_ = 0, interval_steps_ = 0, interval_batches_ = 0;
  std::optional<StopSignal> stop_;  // from the first step on: before it nothing would be lost
  int signal() const { return stop_ ? stop_->signal() : 0; }
};

void Trainer::open_folder() {
  const fs::path folder = config_.job.dump_folder;
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "job.dump_folder: cannot make {}: {}; choose a folder that can be written, with free space", folder.string(),
        error.message());
  lock_.emplace(folder);
  write_config_files(config_);
}

void Trainer::build() {
  log_info("Starting job: {}", config_.job.description);
  device_ = select_device(config_.training.device, 0);
  device_info_ = device_info(device_);
  if (config_.debug.deterministic) set_deterministic(config_.debug.deterministic_warn_only);
  log_info("halftone {} on {} ({} threads)", version_, device_.str(), max_threads());
  log_info("{} capacity: {} with {:.2f} GiB memory", device_.is_cpu() ? "CPU" : "CUDA", device_info_.name, device_info_.capacity_gib);
  open_folder();
  progress_.seed = config_.debug.seed ? static_cast<uint64_t>(*config_.debug.seed) : std::random_device{}();
  if (!config_.debug.seed) log_info("debug.seed is not set: drew {}", progress_.seed);

  tokenizer_ = prepare_tokenizer(config_);
  global_batch_ = config_.training.global_batch_size > 0 ? config_.training.global_batch_size : config_.training.local_batch_size;
  check(global_batch_ % config_.training.local_batch_size == 0,
        "training.global_batch_size = {} is not a multiple of training.local_batch_size = {}", global_batch_,
        config_.training.local_batch_size);

  Engine::Options options;
  options.device = device_, options.seed = progress_.seed, options.vocab_size = tokenizer_->vocab_size();
  options.positions = std::max(config_.training.seq_len, config_.validation.enable ? config_.validation.seq_len : 0);
  engine_ = std::make_unique<Engine>(config_, options);
  const nn::ModelSize& size = engine_->size();
  log_info("Building {} {} with {} layers of width {}, {} heads ({} of keys and values), vocabulary {}", config_.model.name,
           config_.model.flavor, size.layers, thousands(static_cast<double>(size.dim)), size.heads, size.kv_heads,
           thousands(static_cast<double>(size.vocab)));
  log_debug("hyper-parameters: {}", engine_->built().overrides_json);
  if (config_.checkpoint.last_save_in_hf) {
    for (const nn::Parameter* p : engine_->store().parameters()) {
      check(!p->added,
            "checkpoint.last_save_in_hf: {}, which a recipe adds to the model, has no place in LlamaForCausalLM; leave last_save_in_hf "
            "off or "
            "take another scheme",
            p->fqn);
    }
  }
  log_info("Model {} {} size: {} total parameters", config_.model.name, config_.model.flavor,
           thousands(static_cast<double>(size.parameters)));
  for (const std::string& line : engine_->recipe_lines()) log_info("{}", line);
  for (const std::string& line : engine_->memory_table()) log_info("{}", line);
  flops_per_token_ =
      flops_per_token({size.parameters, size.embedding_parameters, size.tied, size.layers, size.heads, size.head_dim, size.head_dim},
                      config_.training.seq_len);
  if (!device_.is_cpu()) {
    const PeakFlops peak = peak_flops(device_info_.name);
    if (!peak.known) log_warning("no peak FLOPS known for {}: mfu assumes an A100's", device_info_.name);
    peak_flops_ = peak.bf16;
    log_info("Peak FLOPS used for computing MFU: {:.3e}", peak_flops_);
  }
  if (config_.checkpoint.enable) {
    CheckpointOptions c;
    c.folder = fs::path(config_.job.dump_folder) / config_.checkpoint.folder;
    c.keep_latest_k = static_cast<int>(config_.checkpoint.keep_latest_k), c.checksum = config_.checkpoint.checksum;
    c.verify_on_load = config_.checkpoint.verify_on_load, c.max_shard_bytes = config_.checkpoint.max_shard_bytes;
    c.async = config_.checkpoint.async_mode != "disabled";
    store_ = std::make_unique<CheckpointStore>(c);
    store_->prepare();
    log_info("Checkpointing active: folder {}, every {} steps", c.folder.string(), config_.checkpoint.interval);
  }
  // Last, since tokenising may take long: what is wrong with model, recipe and folders is known by now.
  loader_ = make_training_loader(config_, *tokenizer_, global_batch_, 0, 1, !device_.is_cpu());
  if (config_.validation.enable) validation_ = make_validation_loader(config_, *tokenizer_, 0, 1, !device_.is_cpu());
}

bool Trainer::excluded(const char* part) const {
  const std::vector<std::string>& parts = config_.checkpoint.exclude_from_loading;
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

// The state of a full step, but for what is excluded, which becomes that of a fresh run.
void Trainer::restore(const LoadedStep& step, bool everything) {
  const auto loads = [&](const char* part) { return everything || !excluded(part); };
  const RunProgress saved = restored_progress(step);
  restore_model(*engine_, step);
  loads("optimizer") ? restore_optimizer(*engine_, step) : engine_->clear_optimizer();
  loader_->load_state(loads("dataloader") ? restored_loader_state(step) : first_rows_);
  RunProgress now = loads("train_state") ? saved : RunProgress{};
  now.last_epoch = loads("lr_scheduler") ? saved.last_epoch : 0;
  now.seed = loads("rng") ? saved.seed : progress_.seed;
  now.token_ids = saved.token_ids;
  if (!everything && config_.debug.seed && now.seed != static_cast<uint64_t>(*config_.debug.seed))
    log_warning("debug.seed = {} is ignored: the run goes on with its own, {}", *config_.debug.seed, now.seed);
  progress_ = std::move(now);
  engine_->set_seed(progress_.seed);
}

void Trainer::check_same_model(const LoadedStep& step) const {
  if (step.hf_config()) return;
  const std::vector<std::string> differences = model_differences(engine_->built().overrides_json, step);
  check(differences.empty(),
        "{} was trained as another model: {}; set that back, or start another run (job.dump_folder) with checkpoint.initial_load_path",
        step.folder().string(), fmt::join(differences, ", "));
}

void Trainer::warn_of_differences(const LoadedStep& step) const {
  for (const std::string& difference : arithmetic_differences(config_, step))
    log_warning("this run goes on in other arithmetic than {}: {}", step.folder().filename().string(), difference);
  for (const std::string& difference : course_differences(config_, step, first_rows_))
    log_warning("this run goes on otherwise than {}: {}", step.folder().filename().string(), difference);
}

// Goes on from a step of this run's folder; false when nothing is left to do.
bool Trainer::resume(int64_t number) {
  const CheckpointConfig& c = config_.checkpoint;
  const auto start = Clock::now();
  const LoadedStep step = store_->open(number);
  check(number == 0 || !step.model_only(),
        "checkpoint.load_step: {} holds the model alone, from which a run cannot go on; load a full step, or start another run "
        "(job.dump_folder) with checkpoint.initial_load_path = {}",
        step.folder().string(), step.folder().string());
  if (c.initial_load_path) log_warning("checkpoint.initial_load_path is ignored: this run resumes from its own step {}", number);
  check_same_model(step);
  warn_of_differences(step);
  if (number == 0) {
    restore_model(*engine_, step);
    progress_.token_ids = saved_token_ids(step);
  } else {
    restore(step, false);
  }
  started_from_ = number;
  last_saved_ = progress_.step == number ? number : -1;
  log_info("Loaded checkpoint step {} in {:.2f} seconds", number, seconds_since(start));
  if (progress_.step >= config_.training.steps && config_.training.steps > 0) return false;
  const bool another_course = c.load_step >= 0 || progress_.step != number;
  if (!another_course || c.load_only) return true;
  for (const fs::path& moved : store_->set_aside_after(progress_.step))
    log_warning("this run goes on from step {}: a later step of its former course is {} now", progress_.step, moved.string());
  return true;
}

bool Trainer::load() {
  const CheckpointConfig& c = config_.checkpoint;
  const bool initial = c.enable && (c.initial_load_path || c.initial_load_in_hf);
  first_rows_ = loader_->state();
  if (store_) {
    const bool newest = c.load_step < 0;
    const std::optional<int64_t> any = newest ? store_->latest_valid(false) : std::nullopt;
    if (any && !excluded("train_state") && *any >= config_.training.steps && config_.training.steps > 0) {
      check_same_model(store_->open(*any));
      progress_.step = last_saved_ = *any;
      return false;
    }
    const std::optional<int64_t> full = newest ? store_->latest_valid(true) : std::optional<int64_t>(c.load_step);
    if (full) return resume(*full);
    if (any && !initial) {
      fail(
          "{0} holds the model alone (checkpoint.last_save_model_only), from which a run cannot go on, and no full step; start another "
          "run (job.dump_folder) with checkpoint.initial_load_path = {0}",
          store_->step_folder(*any).string());
    }
  }
  if (!initial) {
    engine_->initialize();
    return true;
  }
  const fs::path given = c.initial_load_path ? fs::path(*c.initial_load_path) : fs::path(config_.model.hf_assets_path);
  const fs::path path = resolve_checkpoint(given);  // of a run's folder: its newest step
  if (path != given) log_info("checkpoint.initial_load_path: the newest step of {} is {}", given.string(), path.filename().string());
  const LoadedStep step = LoadedStep::open(path, c.verify_on_load);
  if (step.hf_config()) {
    check_matches_hf(engine_->built().overrides_json, *step.hf_config(), path.string());
  } else if (const auto differences = model_differences(engine_->built().overrides_json, step); !differences.empty()) {
    log_warning("checkpoint.initial_load_path: {} was trained as another model: {}", path.string(), fmt::join(differences, ", "));
  }
  if (c.initial_load_model_only) {
    restore_model(*engine_, step);
    progress_.token_ids = saved_token_ids(step);
  } else {
    check(!step.model_only(), "checkpoint.initial_load_model_only = false: {} holds the model alone; take a full step, or set it to true",
          path.string());
    warn_of_differences(step);
    restore(step, false);
  }
  log_info("Loaded initial {} from {}", c.initial_load_model_only ? "weights" : "state", path.string());
  return progress_.step < config_.training.steps || config_.training.steps == 0;
}

double Trainer::median_loss() const {
  std::vector<double> sorted = progress_.recent_losses;
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  return sorted[sorted.size() / 2];
}

// The next step's micro-batches, without the rows that rollbacks leave out; none when the data ended.
std::optional<std::vector<MicroBatch>> Trainer::next_batches() {
  std::vector<MicroBatch> batches;
  const auto wait = Clock::now();
  while (batches.empty()) {
    rows_ = loader_->next_step();
    const bool bad = bad_rows_.contains(rows_);
    for (int64_t a = 0; a < loader_->microbatches_per_step(); ++a) {
      if (!loader_->has_next()) {
        log_warning("Ran out of data; last step was canceled.");
        return std::nullopt;
      }
      const Batch batch = loader_->next();
      if (!bad) batches.push_back(to_device(batch, *engine_, a * batch.tokens.numel()));
    }
    interval_batches_ += loader_->microbatches_per_step();
    if (bad) log_warning("the rows from {} of epoch {} on are left out", rows_.row, rows_.epoch);
  }
  data_seconds_ += seconds_since(wait);
  return batches;
}

// False when the data ended.
bool Trainer::train_step(int64_t step) {
  const std::optional<std::vector<MicroBatch>> batches = next_batches();
  if (!batches) return false;
  const double factor = schedule_->factor(progress_.last_epoch);
  const double spike = config_.training.spike_factor;
  bool spiked = false;
  std::optional<QuantizationReport> quantization;
  if (config_.metrics.log_quantization && is_logged(step)) quantization.emplace();
  const StepResult r = engine_->step(*batches, step, factor, [&](double loss) {
    spiked = spike > 0 && progress_.recent_losses.size() >= kMedianWindow / 4 && loss > spike * median_loss();
    return !spiked;
  });
  if (quantization) quantization->write(step, *metrics_);  // before a step that is not finite may end the run
  quantization.reset();
  int64_t tokens = 0;
  for (const MicroBatch& b : *batches) tokens += b.input.tokens.numel();
  progress_.step = step, progress_.tokens_seen += tokens, ++progress_.last_epoch;
  interval_tokens_ += tokens, ++interval_steps_;
  if (r.valid_labels == 0) {
    metrics_->log_event(step, "no valid label in this step: no update");
    return true;
  }
  const double loss = r.loss_sum / static_cast<double>(r.valid_labels);
  if (!r.updated) {
    refuse(step, fmt::format("{} at step {} (first on rank 0): loss {}, gradient norm {}",
                             spiked ? "loss is above spike_factor times its running median" : "loss or gradient norm is not finite", step,
                             plain_nan(loss), plain_nan(r.grad_norm)));
    return true;
  }
  progress_.skipped_updates = 0;
  if (step > furthest_bad_step_) rollbacks_ = 0;
  progress_.recent_losses.push_back(loss);
  if (progress_.recent_losses.size() > kMedianWindow) progress_.recent_losses.erase(progress_.recent_losses.begin());
  if (is_logged(step)) log_step(step, r, config_.optimizer.lr * factor);
  return true;
}

// A step without an update: what training.nonfinite says.
void Trainer::refuse(int64_t step, const std::string& what) {
  const std::string& then = config_.training.nonfinite;
  if (then == "rollback") return rollback(step, what);
  if (then != "skip") throw NonFiniteError(what + "; no update was made; training.nonfinite = \"skip\" or \"rollback\" go on");
  if (++progress_.skipped_updates > kMaxSkipped)
    throw NonFiniteError(fmt::format("{}; {} updates in a row were skipped", what, kMaxSkipped));
  metrics_->log_event(step, what + "; update skipped");
}

void Trainer::rollback(int64_t step, const std::string& reason) {
  if (++rollbacks_ > kMaxSkipped) throw NonFiniteError(fmt::format("{}; {} rollbacks in a row did not help", reason, kMaxSkipped));
  if (store_) store_->wait();  // for a save on its way
  const std::optional<int64_t> full = store_ ? store_->latest_valid(true, step - 1) : std::nullopt;
  if (!full) {
    throw NonFiniteError(reason +
                         "; training.nonfinite = \"rollback\": there is no checkpoint to go back to; set checkpoint.enable and a "
                         "shorter checkpoint.interval");
  }
  const LoadedStep saved = store_->open(*full);
  if (*full > 0) {
    restore(saved, full != started_from_);
  } else {
    restore_model(*engine_, saved);
    engine_->clear_optimizer();
    loader_->load_state(first_rows_);
    const uint64_t seed = progress_.seed;
    progress_ = {}, progress_.seed = seed;
  }
  last_saved_ = progress_.step == *full ? *full : -1;
  bad_rows_.insert(rows_);
  furthest_bad_step_ = std::max(furthest_bad_step_, step);
  metrics_->rewind(progress_.step,
                   fmt::format("{}; back to the checkpoint of step {}, the rows of step {} are left out", reason, *full, step));
}

void Trainer::log_step(int64_t step, const StepResult& r, double lr) {
  synchronize(device_);
  const double seconds = seconds_since(interval_start_);
  const double tps = static_cast<double>(interval_tokens_) / seconds;
  const MemoryUse memory = peak_memory(device_);
  const double capacity = device_info_.capacity_gib;
  Scalars s = {{"loss_metrics/global_avg_loss", r.loss_sum / static_cast<double>(r.valid_labels)},
               {"loss_metrics/global_max_loss", r.loss_sum / static_cast<double>(r.valid_labels)},  // one rank: its own
               {"grad_norm", r.grad_norm},
               {"lr", lr},
               {"n_tokens_seen", static_cast<double>(progress_.tokens_seen)},
               {"throughput(tps)", tps},
               {"tflops", tflops(flops_per_token_, tps)}};
  if (peak_flops_ > 0) s.emplace_back("mfu(%)", mfu_percent(flops_per_token_, tps, peak_flops_));
  s.insert(s.end(), {{"time_metrics/end_to_end(s)", seconds / static_cast<double>(interval_steps_)},
                     {"time_metrics/data_loading(s)", data_seconds_ / static_cast<double>(interval_batches_)},
                     {"time_metrics/data_loading(%)", 100 * data_seconds_ / seconds},
                     {"memory/max_active(GiB)", memory.active_gib},
                     {"memory/max_active(%)", 100 * memory.active_gib / capacity},
                     {"memory/max_reserved(GiB)", memory.reserved_gib},
                     {"memory/max_reserved(%)", 100 * memory.reserved_gib / capacity},
                     {"memory/num_alloc_retries", static_cast<double>(memory.alloc_retries)},
                     {"memory/num_ooms", static_cast<double>(memory.ooms)}});
  if (memory.alloc_retries > 0 || memory.ooms > 0)
    log_warning("{} allocation retries, {} times out of memory", memory.alloc_retries, memory.ooms);
  metrics_->log_train(step, s);
  reset_peak_memory(device_);
  interval_start_ = Clock::now();
  data_seconds_ = 0, interval_tokens_ = interval_steps_ = interval_batches_ = 0;
}

void Trainer::validate(int64_t step) {
  if (!validation_) return;
  const auto start = Clock::now();
  double sum = 0;
  int64_t valid = 0, tokens = 0, bytes = 0;
  validation_->rewind();
  while (validation_->has_next()) {
    const Batch batch = validation_->next();
    sum += engine_->evaluate(to_device(batch, *engine_, 0));
    valid += batch.valid_labels, tokens += batch.tokens.numel(), bytes += batch.label_bytes;
  }
  check(valid > 0, "validation: no valid label in its data");
  validation_loss_ = sum / static_cast<double>(valid);
  const MemoryUse memory = peak_memory(device_);
  Scalars s = {{"validation_metrics/loss", validation_loss_},
               {"validation_metrics/throughput(tps)", static_cast<double>(tokens) / seconds_since(start)},
               {"validation_metrics/memory/max_active(GiB)", memory.active_gib},
               {"validation_metrics/memory/max_active(%)", 100 * memory.active_gib / device_info_.capacity_gib},
               {"validation_metrics/memory/max_reserved(GiB)", memory.reserved_gib},
               {"validation_metrics/memory/max_reserved(%)", 100 * memory.reserved_gib / device_info_.capacity_gib}};
  if (bytes > 0) s.emplace_back("validation_metrics/bits_per_byte", sum / std::log(2.0) / static_cast<double>(bytes));
  metrics_->log_validate(step, s);
  interval_start_ += std::chrono::duration_cast<Clock::duration>(Clock::now() - start);
}

void Trainer::save(int64_t step, bool last) {
  if (!store_ || config_.checkpoint.load_only || last_saved_ == step) return;
  const auto start = Clock::now();
  const bool model_only = last && config_.checkpoint.last_save_model_only;
  const std::string& exported = config_.checkpoint.export_dtype;
  const at::ScalarType export_dtype = exported == "bfloat16" ? at::kBFloat16 : exported == "float16" ? at::kHalf : at::kFloat;
  if (last && config_.checkpoint.last_save_in_hf) {
    HfExport content;
    content.config = hf_config_of(engine_->built().overrides_json);
    content.config.token_ids = exported_token_ids(progress_.token_ids, tokenizer_->bos_id(), tokenizer_->eos_id());
    for (const nn::Parameter* p : engine_->store().parameters()) content.model.push_back({p->fqn, p->values()});
    content.dtype = export_dtype;
    content.max_shard_bytes = config_.checkpoint.max_shard_bytes;
    content.copy_files = tokenizer_files(config_.model.hf_assets_path);
    store_->save_hf(step, content);
  } else {
    StepState state = collect_state(*engine_, progress_, loader_->state(), config_, model_only);
    state.copy_files = tokenizer_files(config_.model.hf_assets_path);
    if (model_only) state.model_dtype = export_dtype;
    store_->save(state, last);
  }
  last_saved_ = step;
  log_info("Saved checkpoint step {} in {:.2f} seconds", step, seconds_since(start));
  interval_start_ += std::chrono::duration_cast<Clock::duration>(Clock::now() - start);
}

// What depends on the number of steps: with training.minutes it is known only now.
void Trainer::plan() {
  sizing_.measure(config_, *engine_, *loader_, validation_.get(), progress_.step);
  schedule_.emplace(schedule_of(config_));
  for (const std::string& w : schedule_->warnings()) log_warning("{}", w);
}

void Trainer::train() {
  const int64_t steps = config_.training.steps;
  log_info(
      "Trainer is initialized with local batch size {}, global batch size {}, gradient accumulation steps {}, sequence length {}, total "
      "steps {} (warmup {})",
      config_.training.local_batch_size, global_batch_, loader_->microbatches_per_step(), config_.training.seq_len, steps,
      schedule_->warmup_steps());
  if (steps == 0) return validate(0);
  stop_.emplace();
  if (!sizing_.measured()) log_estimate(*engine_, *loader_, steps - progress_.step);
  log_info("Training starts at step {}", progress_.step + 1);
  interval_start_ = Clock::now();
  while (progress_.step < steps && signal() == 0) {
    const int64_t step = progress_.step + 1;
    const bool more = train_step(step);
    if (!more) break;
    if (progress_.step != step) continue;  // rolled back
    const bool last = step == steps;
    if (validation_ && (step == 1 || step % config_.validation.freq == 0 || last)) validate(step);
    const bool due = step % config_.checkpoint.interval == 0 || (step == 1 && config_.checkpoint.enable_first_step_checkpoint);
    if (last || due) save(step, last);
  }
  if (progress_.step < steps) {
    if (signal() != 0 && !store_) log_info("checkpoint.enable is false: nothing is saved");
    save(progress_.step, false);
  }
  if (store_) store_->wait();
}

RunSummary Trainer::summary(RunEnd end) const {
  RunSummary s;
  s.end = end, s.signal = signal(), s.step = progress_.step, s.validation_loss = validation_loss_;
  s.device = device_.is_cpu() ? "cpu" : "cuda";
  if (store_ && last_saved_ >= 0) s.checkpoint = store_->step_folder(last_saved_).string();
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
  if (!load() && !seed) {
    log_info("run complete at step {}", progress_.step);
    return summary(RunEnd::already_complete);
  }
  if (seed) {
    RunProgress none;
    none.seed = progress_.seed;
    StepState state = collect_state(*engine_, none, first_rows_, config_, false);
    state.optim.clear();  // step 0 is read as the model alone
    state.copy_files = tokenizer_files(config_.model.hf_assets_path);
    store_->save(state, true);
    log_info("Saved the seed checkpoint {}", store_->step_folder(0).string());
    return summary(RunEnd::completed);
  }
  plan();
  MetricsOptions m;
  m.dump_folder = config_.job.dump_folder, m.config = config_.metrics, m.total_steps = config_.training.steps;
  metrics_ = std::make_unique<MetricsLogger>(
      m, started_from_ && progress_.step > 0 ? std::optional(progress_.step) : std::nullopt,
      RunDescription{to_json(config_), version_, device_info_.name, 1, {{"dp_shard", 1}}, config_.quantize.recipe_text});
  const auto start = Clock::now();
  train();
  if (signal() != 0) {
    log_info("stopped by signal {} after step {}; the same command goes on from there", signal(), progress_.step);
    return summary(RunEnd::interrupted);
  }
  log_info("Training completed after {}{}", duration_text(seconds_since(start)),
           validation_ ? fmt::format(", validation loss {:.4f}", validation_loss_) : "");
  return summary(RunEnd::completed);
}

}  // namespace

RunSummary run_training(const LoadedConfig& loaded, const std::string& version, const std::string& full_run) {
  return Trainer(loaded, version, full_run).run();
}

}  // namespace halftone
