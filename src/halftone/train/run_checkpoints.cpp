#include "halftone/train/run_checkpoints.h"
#include "halftone/train/saved_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/tokenizer.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/run_differences.h"

namespace halftone {

namespace fs = std::filesystem;

std::unique_ptr<CheckpointStore> open_checkpoints(const JobConfig& config, const CheckpointRanks& ranks) {
  if (!config.checkpoint.enable) return nullptr;
  CheckpointOptions c;
  c.folder = fs::path(config.job.dump_folder) / config.checkpoint.folder;
  c.keep_latest_k = static_cast<int>(config.checkpoint.keep_latest_k), c.checksum = config.checkpoint.checksum;
  c.verify_on_load = config.checkpoint.verify_on_load, c.max_shard_bytes = config.checkpoint.max_shard_bytes;
  c.async = config.checkpoint.async_mode != "disabled";
  c.ranks = ranks, c.timeout = std::chrono::seconds(config.checkpoint.save_timeout_seconds);
  auto store = std::make_unique<CheckpointStore>(c);
  store->prepare();
  return store;
}

bool RunCheckpoints::excluded(const char* part) const {
  const std::vector<std::string>& parts = config_.exclude_from_loading;
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

bool RunCheckpoints::complete() const {
  const int64_t steps = run_.config.training.steps;
  return steps > 0 && run_.progress.step >= steps;
}

// Restores a full step, except for excluded parts, which are initialized as in a fresh run.
void RunCheckpoints::restore(const LoadedStep& step, bool everything) {
  const auto loads = [&](const char* part) { return everything || !excluded(part); };
  const RunProgress saved = restored_progress(step);
  restore_model(run_.engine, step);
  loads("optimizer") ? restore_optimizer(run_.engine, step) : run_.engine.clear_optimizer();
  run_.data.loader().load_state(loads("dataloader") ? restored_loader_state(step) : run_.data.first_rows());
  RunProgress now = loads("train_state") ? saved : RunProgress{};
  now.last_epoch = loads("lr_scheduler") ? saved.last_epoch : 0;
  now.seed = loads("rng") ? saved.seed : run_.progress.seed;
  now.token_ids = saved.token_ids;
  const std::optional<int64_t>& seed = run_.config.debug.seed;
  if (!everything && seed && now.seed != static_cast<uint64_t>(*seed))
    log_warning("debug.seed = {} is ignored: the run keeps its own seed, {}", *seed, now.seed);
  run_.progress = std::move(now);
  run_.engine.set_seed(run_.progress.seed);
}

void RunCheckpoints::check_same_model(const LoadedStep& step) const {
  if (step.hf_config()) return;
  const std::vector<std::string> differences = model_differences(*run_.engine.built().description, step);
  check(differences.empty(),
        "{} was trained as another model: {}; set that back, or start another run (job.dump_folder) with checkpoint.initial_load_path",
        step.folder().string(), fmt::join(differences, ", "));
}

void RunCheckpoints::warn_of_differences(const LoadedStep& step) const {
  std::vector<std::string> arithmetic = arithmetic_differences(run_.config, step);
  if (arithmetic.empty()) arithmetic = default_differences(run_.engine.recipe_lines(), step);
  for (const std::string& difference : arithmetic)
    log_warning("this run's arithmetic differs from {}: {}", step.folder().filename().string(), difference);
  RunRows rows{run_.data.first_rows(), run_.data.loader().options().dp_size};
  if (const DataLoader* validation = run_.data.validation()) rows.validation_rows = validation->rows().use().pass_rows;
  const auto decided = [&](const OptionTable& model, const char* name) {
    const auto found = model.find(name);
    return found != model.end() && found->second != OptionValue(0.0);
  };
  rows.micro_batches_count =
      run_.engine.built().description->experts() > 0 && (run_.config.parallelism.expert_parallel_capacity > 0 ||
                                                         decided(run_.engine.built().description->hyper_parameters(), "route_aux_loss"));
  for (const std::string& difference : training_differences(run_.config, step, rows))
    log_warning("this run differs from {}: {}", step.folder().filename().string(), difference);
}

// After step `number` of the folder was restored, possibly without its step count.
void RunCheckpoints::saved_or_loaded(int64_t number) { last_saved_ = run_.progress.step == number ? std::optional(number) : std::nullopt; }

// Resumes from a step of this run's folder; false if nothing is left to do.
bool RunCheckpoints::resume(int64_t number) {
  const Stopwatch watch;
  const LoadedStep step = store_->open(number);
  check_same(fmt::format("checkpoints at {}", step.folder().string()), run_.ranks.said("digest " + step.digest()));
  check(number == 0 || !step.model_only(),
        "checkpoint.load_step: {} holds the model only, from which a run cannot resume; load a full step, or start another run "
        "(job.dump_folder) with checkpoint.initial_load_path = {}",
        step.folder().string(), step.folder().string());
  if (config_.initial_load_path) log_warning("checkpoint.initial_load_path is ignored: this run resumes from its own step {}", number);
  check_same_model(step);
  warn_of_differences(step);
  if (number == 0) {
    restore_model(run_.engine, step);
    run_.progress.token_ids = saved_token_ids(step);
  } else {
    restore(step, false);
  }
  started_from_ = number;
  saved_or_loaded(number);
  if (run_.ranks.rank == 0) log_info("Loaded checkpoint step {} in {:.2f} seconds", number, watch.seconds());
  if (complete()) return false;
  const bool another_course = config_.load_step >= 0 || run_.progress.step != number;
  if (!another_course || config_.load_only) return true;
  for (const fs::path& moved : store_->set_aside_after(run_.progress.step))
    log_warning("resuming from step {}: a later step of this run was renamed to {}", run_.progress.step, moved.string());
  return true;
}

// Loads checkpoint.initial_load_path or the model of model.hf_assets_path.
void RunCheckpoints::load_initial() {
  const Stopwatch watch;
  const fs::path given = config_.initial_load_path ? fs::path(*config_.initial_load_path) : fs::path(run_.config.model.hf_assets_path);
  const fs::path path = resolve_checkpoint(given, run_.ranks);  // for a run's folder: its newest step
  if (path != given) log_info("checkpoint.initial_load_path: the newest step of {} is {}", given.string(), path.filename().string());
  const LoadedStep step = LoadedStep::open(path, {config_.verify_on_load, run_.ranks.rank, run_.ranks.world});
  check_same(fmt::format("checkpoints at {}", path.string()), run_.ranks.said("digest " + step.digest()));
  const ModelDescription& model = *run_.engine.built().description;
  if (const HfConfig* hf = step.hf_config(); hf && hf->quantization) {
    log_info("{}: {} weights are codes with scales ({}) and are dequantised on load{}", path.string(), hf->quantization->weights,
             hf->quantization->method,
             hf->quantization->activation_scales == 0
                 ? ""
                 : fmt::format("; {} activation and cache scales are ignored", hf->quantization->activation_scales));
  }
  if (step.hf_config()) {
    if (const std::string text = ignored_text(step); !text.empty()) log_info("{}", text);
    check_matches_hf(model, *step.hf_config()->model, path.string());
  } else if (const auto differences = model_differences(model, step); !differences.empty()) {
    log_warning("checkpoint.initial_load_path: {} was trained as another model: {}", path.string(), fmt::join(differences, ", "));
  }
  if (config_.initial_load_model_only) {
    restore_model(run_.engine, step);
    run_.progress.token_ids = saved_token_ids(step);
  } else {
    check(!step.model_only(), "checkpoint.initial_load_model_only = false: {} holds the model only; use a full step, or set it to true",
          path.string());
    warn_of_differences(step);
    restore(step, false);
  }
  log_info("Loaded initial {} from {} in {:.2f} seconds", config_.initial_load_model_only ? "weights" : "state", path.string(),
           watch.seconds());
}

bool RunCheckpoints::load() {
  if (!start()) return false;
  if (store_ && !config_.load_only) store_->reserve(collect(false));
  return true;
}

// Files copied into every checkpoint: the tokenizer's, and generation_config.json of the Hugging Face folder that the run started from.
std::vector<std::pair<std::string, fs::path>> RunCheckpoints::carried_files() const {
  auto files = tokenizer_files(run_.config.model.hf_assets_path);
  const fs::path begun = config_.initial_load_path.value_or(run_.config.model.hf_assets_path);
  const char* name = "generation_config.json";
  if (config_.initial_load_in_hf && fs::is_regular_file(begun / name)) files.emplace_back(name, begun / name);
  return files;
}

StepState RunCheckpoints::collect(bool model_only) const {
  nlohmann::json rows = run_.data.loader().state();
  if (rows.contains("positions")) rows = merge_states(run_.ranks.said(rows.dump()));
  return collect_state(run_.engine, run_.progress, rows, run_.config, model_only, run_.ranks);
}

bool RunCheckpoints::start() {
  const bool initial = config_.enable && (config_.initial_load_path || config_.initial_load_in_hf);
  if (store_) {
    const bool newest = config_.load_step < 0;
    const std::optional<int64_t> any = newest ? store_->latest_valid(false) : std::nullopt;
    if (any && !excluded("train_state") && *any >= run_.config.training.steps && run_.config.training.steps > 0) {
      check_same_model(store_->open(*any));
      run_.progress.step = *any;
      last_saved_ = any;
      return false;
    }
    const std::optional<int64_t> full = newest ? store_->latest_valid(true) : std::optional<int64_t>(config_.load_step);
    if (full) return resume(*full);
    if (any && !initial) {
      fail(
          "{0} holds the model only (checkpoint.last_save_model_only), from which a run cannot resume, and no full step; start another "
          "run (job.dump_folder) with checkpoint.initial_load_path = {0}",
          store_->step_folder(*any).string());
    }
  }
  if (!initial) {
    run_.engine.initialize();
    return true;
  }
  load_initial();
  return !complete();
}

int64_t RunCheckpoints::go_back(const std::string& reason, const RowCursor& rows) {
  if (store_) store_->wait();  // for a save in flight
  const std::optional<int64_t> full = store_ ? store_->latest_valid(true, run_.progress.step - 1) : std::nullopt;
  if (!full) {
    throw NonFiniteError(reason +
                         "; rollback: there is no checkpoint to roll back to; set checkpoint.enable and a "
                         "shorter checkpoint.interval");
  }
  const LoadedStep saved = store_->open(*full);
  if (*full > 0) {
    restore(saved, full != started_from_);
  } else {
    restore_model(run_.engine, saved);
    run_.engine.clear_optimizer();
    run_.data.loader().load_state(run_.data.first_rows());
    const uint64_t seed = run_.progress.seed;
    run_.progress = {}, run_.progress.seed = seed;
  }
  saved_or_loaded(*full);
  run_.data.leave_out(rows);
  return *full;
}

void RunCheckpoints::save(bool last) {
  const int64_t step = run_.progress.step;
  if (!store_ || config_.load_only || last_saved_ == step) return;
  const Stopwatch watch;
  const bool model_only = last && config_.last_save_model_only;
  const std::string& exported = config_.export_dtype;
  const HfFormat* codes = single_format(exported);  // unquantised weights are bfloat16 then
  const at::ScalarType export_dtype = exported == "bfloat16" || codes != nullptr ? at::kBFloat16
                                      : exported == "float16"                    ? at::kHalf
                                                                                 : at::kFloat;
  if (last && config_.last_save_in_hf) {
    HfExport content;
    content.config.model = run_.engine.built().description;
    content.config.token_ids = exported_token_ids(run_.progress.token_ids, run_.tokenizer.bos_id(), run_.tokenizer.eos_id());
    content.model = model_numbers(run_.engine, run_.ranks);
    content.dtype = export_dtype, content.format = codes;
    if (codes != nullptr) content.form = find_hf_form(exported);
    content.max_shard_bytes = config_.max_shard_bytes;
    content.copy_files = carried_files();
    store_->save_hf(step, content);
  } else {
    StepState state = collect(model_only);
    state.copy_files = carried_files();
    if (model_only) state.model_dtype = export_dtype;
    store_->save(state, last);
  }
  last_saved_ = step;
  if (run_.ranks.rank == 0) log_info("Saved checkpoint step {} in {:.2f} seconds", step, watch.seconds());
}

void RunCheckpoints::save_seed() {
  RunProgress none;
  none.seed = run_.progress.seed;
  StepState state = collect_state(run_.engine, none, run_.data.first_rows(), run_.config, false, run_.ranks);
  state.optim.clear();  // step 0 is loaded as a model only
  state.copy_files = carried_files();
  store_->save(state, true);
  log_info("Saved the seed checkpoint {}", store_->step_folder(0).string());
}

}  // namespace halftone
