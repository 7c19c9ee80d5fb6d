#include "halftone/config/rules.h"

#include <algorithm>
#include <charconv>

#include "halftone/config/value.h"

namespace halftone {
namespace {

void check_run(const JobConfig& j, const RuleContext& c) {
  const ProfilingConfig& p = j.profiling;
  rule(c, p.profiler_active <= p.profile_freq && p.profiler_warmup <= p.profile_freq - p.profiler_active,
       {"profiling.profile_freq", "profiling.profiler_active", "profiling.profiler_warmup"},
       "profiling.profile_freq must be at least profiling.profiler_active + profiling.profiler_warmup, found {} < {} + {}", p.profile_freq,
       p.profiler_active, p.profiler_warmup);
  rule(c, !j.job.dump_folder.empty(), {"job.dump_folder"}, "job.dump_folder must not be empty");
  rule(c, !j.debug.deterministic_warn_only || j.debug.deterministic, {"debug.deterministic_warn_only"},
       "debug.deterministic_warn_only needs debug.deterministic");
  rule(c, !j.debug.batch_invariant || j.parallelism.expert_parallel_capacity == 0,
       {"debug.batch_invariant", "parallelism.expert_parallel_capacity"},
       "debug.batch_invariant: parallelism.expert_parallel_capacity drops rows by the load of the batch; set it to 0");
  rule(c, !j.debug.batch_invariant || j.parallelism.context_parallel_degree == 1,
       {"debug.batch_invariant", "parallelism.context_parallel_degree"},
       "debug.batch_invariant: context parallelism sums attention by the ranks' keys, whose places in a document differ; set "
       "parallelism.context_parallel_degree to 1");
}

void check_optimizer(const JobConfig& j, const RuleContext& c) {
  const OptimizerConfig& o = j.optimizer;
  optim::optimizer_of(o.name).check(o, [&](bool ok, std::string_view option, double value, std::string_view must, std::string_view why) {
    const std::string field = fmt::format("optimizer.{}", option);
    rule(c, ok, {field.c_str()}, "{} must be {}, found {}{}", field, must, value, why);
  });
  const LrSchedulerConfig& s = j.lr_scheduler;
  rule(c, !s.decay_ratio || *s.decay_ratio <= 1, {"lr_scheduler.decay_ratio"}, "lr_scheduler.decay_ratio must be at most 1, found {}",
       s.decay_ratio.value_or(0));
  rule(c, s.min_lr_factor <= 1, {"lr_scheduler.min_lr_factor"}, "lr_scheduler.min_lr_factor must be at most 1, found {}", s.min_lr_factor);
}

// A kind of data with its path, or a name of [data.names]; c4 checks for a path when the data is opened.
void check_dataset(const JobConfig& j, const RuleContext& c, const char* field, const std::string& dataset, bool has_path,
                   const char* or_else) {
  const bool named = j.data.names.contains(dataset), kind = std::find(kDatasets.begin(), kDatasets.end(), dataset) != kDatasets.end();
  rule(c, named || kind, {field},
       "{}: expected one of {}, or a name of [data.names]{}; found \"{}\": nothing is downloaded, add [data.names.{}] with path = ...",
       field, join(kDatasets), j.data.names.empty() ? " (which is empty)" : "", dataset, dataset);
  rule(c, named || !kind || has_path || dataset.starts_with("c4"), {field}, "{} = {} needs {}_path (a file, folder or glob){}", field,
       dataset, field, or_else);
}

// training.dataloader.read, or what a data set of [data.names] says instead.
std::string reading(const JobConfig& j) {
  const auto named = j.data.names.find(j.training.dataset);
  if (named == j.data.names.end() || !named->second.contains("read")) return j.training.dataloader.read;
  const auto* read = std::get_if<std::string>(&named->second.at("read"));
  return read == nullptr ? "" : *read;
}

void check_data(const JobConfig& j, const RuleContext& c) {
  const TrainingConfig& t = j.training;
  if (t.sources.empty()) check_dataset(j, c, "training.dataset", t.dataset, t.dataset_path.has_value(), "");
  rule(c, t.sources.empty() || !t.dataset_path, {"training.sources", "training.dataset_path"},
       "training.sources is the training data: move training.dataset_path into a source");
  const bool lanes = !t.sources.empty() || reading(j) == "streamed";
  rule(c, !lanes || t.dataloader.repeat.value_or(true), {"training.dataloader.repeat", "training.dataloader.read", "training.sources"},
       "training.dataloader.repeat = false needs an indexed data set, whose length is known; end a stream or a mixture by training.steps, "
       "or "
       "its sources by epochs or tokens");
  rule(c, !lanes || !t.dataloader.shuffle_rows, {"training.dataloader.shuffle_rows", "training.dataloader.read", "training.sources"},
       "training.dataloader.shuffle_rows needs an indexed data set; a stream's lanes mix its rows already");
  rule(c, !lanes || j.validation.holdout == 0, {"validation.holdout", "training.dataloader.read", "training.sources"},
       "validation.holdout needs one indexed data set; give a stream or a mixture its own validation.dataset_path");
  const DataloaderConfig &vd = j.validation.dataloader, none;
  rule(
      c, vd.read == none.read && vd.shuffle_buffer == none.shuffle_buffer && vd.stream_lanes == none.stream_lanes,
      {"validation.dataloader.read", "validation.dataloader.shuffle_buffer", "validation.dataloader.stream_lanes"},
      "validation.dataloader.read = streamed, shuffle_buffer and stream_lanes are for training data: every validation reads the same rows, "
      "which needs an index");
  rule(c, t.global_batch_size == -1 || t.global_batch_size >= 1, {"training.global_batch_size"},
       "training.global_batch_size must be -1 or at least 1, found {}", t.global_batch_size);
  rule(c, t.nonfinite != "rollback" || j.checkpoint.enable, {"training.nonfinite"},
       "training.nonfinite = rollback needs checkpoint.enable");
  const ValidationConfig& v = j.validation;
  rule(c, v.steps == -1 || v.steps >= 1, {"validation.steps"}, "validation.steps must be -1 (one pass) or at least 1, found {}", v.steps);
  rule(c, !v.dataloader.repeat.value_or(false), {"validation.dataloader.repeat"},
       "validation.dataloader.repeat = true is not available: validation makes one pass over its data, or validation.steps batches");
  rule(c, v.holdout < 1, {"validation.holdout"}, "validation.holdout must be below 1, found {}", v.holdout);
  rule(c, v.holdout == 0 || (v.dataset == ValidationConfig{}.dataset && !v.dataset_path),
       {"validation.holdout", "validation.dataset", "validation.dataset_path"},
       "validation.holdout uses documents of the training data; set either it or validation.dataset(_path)");
  const bool named = std::any_of(v.tasks.begin(), v.tasks.end(), [](const std::string& task) { return !task.ends_with(".toml"); });
  rule(c, !named || !v.tasks_data.empty(), {"validation.tasks", "validation.tasks_data"},
       "validation.tasks: give the folder with the tasks' data as validation.tasks_data");
  if (v.enable && v.holdout == 0) {
    check_dataset(j, c, "validation.dataset", v.dataset, v.dataset_path.has_value(), ", or set validation.holdout");
  }
}

void check_checkpoint(const JobConfig& j, const RuleContext& c) {
  const CheckpointConfig& k = j.checkpoint;
  rule(c, k.keep_latest_k != 1, {"checkpoint.keep_latest_k"},
       "checkpoint.keep_latest_k must be 0 (all) or at least 2: with 1, a failed save would leave nothing to resume from");
  rule(c, !k.initial_load_in_hf || k.initial_load_model_only, {"checkpoint.initial_load_in_hf", "checkpoint.initial_load_model_only"},
       "checkpoint.initial_load_in_hf needs checkpoint.initial_load_model_only = true: such files hold only a model");
  rule(c, !k.last_save_in_hf || k.last_save_model_only, {"checkpoint.last_save_in_hf", "checkpoint.last_save_model_only"},
       "checkpoint.last_save_in_hf needs checkpoint.last_save_model_only = true: such files hold only a model");
  const bool numbers = k.export_dtype == "float32" || k.export_dtype == "bfloat16" || k.export_dtype == "float16";
  rule(c, numbers || k.last_save_in_hf, {"checkpoint.export_dtype", "checkpoint.last_save_in_hf"},
       "checkpoint.export_dtype = {} needs checkpoint.last_save_in_hf: only Hugging Face's files hold quantized weights", k.export_dtype);
  rule(c, !contains(k.exclude_from_loading, "optimizer") || contains(k.exclude_from_loading, "lr_scheduler"),
       {"checkpoint.exclude_from_loading"}, "checkpoint.exclude_from_loading with optimizer needs lr_scheduler too");
  rule(c, !k.create_seed_checkpoint || (k.enable && c.world_size <= 1), {"checkpoint.create_seed_checkpoint"},
       "checkpoint.create_seed_checkpoint needs checkpoint.enable and one process, found {} and {} processes", k.enable ? "true" : "false",
       c.world_size);
  rule(c, !k.folder.empty(), {"checkpoint.folder"}, "checkpoint.folder must not be empty");
}

void check_recomputation(const JobConfig& j, const RuleContext& c) {
  const ActivationCheckpointConfig& a = j.activation_checkpoint;
  rule(c, a.memory_budget <= 1, {"activation_checkpoint.memory_budget"}, "activation_checkpoint.memory_budget must be at most 1, found {}",
       a.memory_budget);
  int64_t n = 0;
  const std::string& s = a.selective_ac_option;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  rule(c, s == "op" || (error == std::errc{} && end == s.data() + s.size() && n >= 1), {"activation_checkpoint.selective_ac_option"},
       "activation_checkpoint.selective_ac_option must be op or a positive integer, found \"{}\"", s);
}

}  // namespace

void check_rules(const JobConfig& config, const RuleContext& context) {
  check_run(config, context);
  check_optimizer(config, context);
  check_data(config, context);
  check_checkpoint(config, context);
  check_recomputation(config, context);
  check_sense(config, context);
  check_parallelism(config, context);
  check_quantize(config, context);
  check_phases(config, context);
}

}  // namespace halftone
