#include "halftone/train/run_differences.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/config/names.h"
#include "halftone/config/quantize_phases.h"
#include "halftone/config/recipe_file.h"
#include "halftone/config/walk.h"
#include "halftone/train/run_state.h"
#include "halftone/train/schedule.h"

namespace halftone {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

// Fields outside [quantize] that determine the dtypes of computation and storage.
constexpr std::array<std::string_view, 6> kArithmetic = {"model.converters",
                                                         "training.dtype",
                                                         "training.mixed_precision_param",
                                                         "training.mixed_precision_residual",
                                                         "training.mixed_precision_reduce",
                                                         "optimizer.state_dtype"};

// Sections that decide the course of a run, with some fields of others, and what in them changes no result or is compared otherwise.
constexpr std::array<std::string_view, 3> kTrainingSections = {"optimizer", "training", "training.dataloader"};
constexpr std::array<std::string_view, 2> kTraining = {"model.attn_mask_type", "validation.holdout"};
constexpr std::array<std::string_view, 14> kIdle = {"training.steps",             // of a schedule, which is compared as a whole
                                                    "training.local_batch_size",  // by what they mean: add_row_differences
                                                    "training.global_batch_size",
                                                    "training.minutes",
                                                    "training.device",
                                                    "training.offload",
                                                    "training.enable_cpu_offload",
                                                    "training.disable_cuda_graphs",
                                                    "training.gc_freq",
                                                    "training.gc_debug",
                                                    "training.dataloader.num_workers",
                                                    "training.dataloader.prefetch_factor",
                                                    "training.dataloader.pin_memory",
                                                    "training.dataloader.persistent_workers"};
// Fields whose entire effect is described by the loader's state, in digests and words.
constexpr std::array<std::string_view, 26> kData = {"training.dataset",
                                                    "training.dataset_path",
                                                    "training.sources",
                                                    "training.seq_len",
                                                    "training.dataloader.packing",
                                                    "training.dataloader.num_packing_bins",
                                                    "training.dataloader.seed",
                                                    "training.dataloader.shuffle",
                                                    "training.dataloader.shuffle_rows",
                                                    "training.dataloader.text_key",
                                                    "training.dataloader.text_split",
                                                    "training.dataloader.token_dtype",
                                                    "training.dataloader.on_bad_line",
                                                    "training.dataloader.add_bos",
                                                    "training.dataloader.add_eos",
                                                    "training.dataloader.read",
                                                    "training.dataloader.shuffle_buffer",
                                                    "training.dataloader.stream_lanes",
                                                    "training.dataloader.subset",
                                                    "training.dataloader.split",
                                                    "training.dataloader.chat_format",
                                                    "training.dataloader.messages_key",
                                                    "training.dataloader.chat_template",
                                                    "training.dataloader.loss_on",
                                                    "training.dataloader.max_turns",
                                                    "training.dataloader.max_document_mib"};

template <size_t N>
bool lists(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string difference(std::string_view name, const Json& here, const Json& there) {
  return fmt::format("{} is {}, it was {}", name, here.dump(), there.dump());
}

// Members that both objects have, with different values.
void add_differences(Strings& found, const std::string& prefix, const Json& mine, const Json& theirs) {
  for (const auto& [name, value] : mine.items()) {
    if (theirs.is_object() && theirs.contains(name) && theirs[name] != value)
      found.push_back(difference(prefix + name, value, theirs[name]));
  }
}

// The value at "section.name" of nested objects; null if missing.
const Json* member_at(const Json& object, std::string_view name) {
  const Json* at = &object;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const auto found = at->find(std::string(name.substr(begin, end - begin)));
    if (!at->is_object() || found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return at;
}

bool uses_converter(const Json& config, const std::string& name) {
  const Json* list = member_at(config, "model.converters");
  return list != nullptr && std::find(list->begin(), list->end(), name) != list->end();
}

Json options_of(const RecipeModifier& modifier) {
  JobConfig config;
  config.quantize = modifier.options;
  if (modifier.phase) config.quantize.phases = {*modifier.phase};
  return Json::parse(to_json(config)).at("quantize");
}

// By meaning: comments and key order are ignored.
void add_recipe_differences(Strings& found, const QuantizeConfig& mine, const std::string& their_text) {
  const std::vector<RecipeModifier> here = recipe_modifiers(mine);
  std::vector<RecipeModifier> there;
  try {
    there = read_recipe(their_text, mine.recipe);
  } catch (const Error&) {
    found.push_back(fmt::format("{} named a recipe that this build cannot read", mine.recipe));
    return;
  }
  if (here.size() != there.size()) found.push_back(fmt::format("{} has {} modifiers, it had {}", mine.recipe, here.size(), there.size()));
  for (size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    add_differences(found, here[i].place + ": ", options_of(here[i]), options_of(there[i]));
}

// An option that another optimizer takes.
bool is_foreign(const OptimizerConfig& config, std::string_view option) {
  const auto takes = [&](const optim::Optimizer& o) { return o.takes(option); };
  return !takes(optim::optimizer_of(config.name)) && std::ranges::any_of(optim::optimizers(), takes);
}

// Spells out values that mean "by other settings".
Json resolved(Json config) {
  if (!config.is_object() || !member_at(config, "training.dataloader")) return config;
  Json& loader = config["training"]["dataloader"];
  if (!loader.is_object()) return config;
  const auto settle = [&](const char* name, bool value) {
    if (loader.contains(name) && loader[name].is_null()) loader[name] = value;
  };
  settle("document_positions", loader.value("packing", Json()) != "concat");
  for (const char* name : {"repeat", "add_bos", "add_eos"}) settle(name, true);
  // The other names denote one kernel.
  if (const Json* name = member_at(config, "optimizer.implementation"); name != nullptr && *name != "fused_opt_states_bf16")
    config["optimizer"]["implementation"] = "fused";
  // Earlier versions read SGD's momentum from beta1.
  const Json *name = member_at(config, "optimizer.name"), *beta1 = member_at(config, "optimizer.beta1");
  if (name != nullptr && *name == "SGD" && beta1 != nullptr && !member_at(config, "optimizer.momentum"))
    config["optimizer"]["momentum"] = Json(*beta1);
  return config;
}

// The settings that determine the learning rate, from a state's configuration; none if it does not contain them.
std::optional<JobConfig> rate_settings(const Json& config) {
  const Json *steps = member_at(config, "training.steps"), *lr = member_at(config, "optimizer.lr"),
             *scheduler = member_at(config, "lr_scheduler");
  if (steps == nullptr || lr == nullptr || scheduler == nullptr) return std::nullopt;
  try {
    return config_from_json(Json{{"training", {{"steps", *steps}}}, {"optimizer", {{"lr", *lr}}}, {"lr_scheduler", *scheduler}}.dump());
  } catch (const Error&) {
    return std::nullopt;
  }
}

void add_schedule_differences(Strings& found, const JobConfig& config, const LoadedStep& step, const Json& mine, const Json& theirs) {
  const std::optional<JobConfig> before = rate_settings(theirs);
  if (!before) return;
  const RunProgress progress = restored_progress(step);
  const auto loads = [&](const char* part) {
    const StringList& excluded = config.checkpoint.exclude_from_loading;
    return std::find(excluded.begin(), excluded.end(), part) == excluded.end();
  };
  const int64_t first = loads("lr_scheduler") ? progress.last_epoch : 0, done = loads("train_state") ? progress.step : 0;
  const Schedule here = schedule_of(config), there = schedule_of(*before);
  const auto rates = [&](int64_t n) {  // of the step n steps after the resumed one
    return std::pair(config.optimizer.lr * here.factor(first + n), before->optimizer.lr * there.factor(progress.last_epoch + n));
  };
  const int64_t left = std::max<int64_t>(1, config.training.steps - done);
  int64_t n = 0;
  while (n < left && rates(n).first == rates(n).second) ++n;
  if (n == left) return;
  add_differences(found, "lr_scheduler.", mine.at("lr_scheduler"), theirs.at("lr_scheduler"));
  const bool counts_steps = !config.lr_scheduler.total_steps || !before->lr_scheduler.total_steps;
  if (counts_steps && config.training.steps != before->training.steps)
    found.push_back(difference("training.steps", config.training.steps, before->training.steps));
  const auto [now, then] = rates(0);
  found.push_back(fmt::format("the learning rate at step {} is {:.4g}, by the former schedule {:.4g}{}", done + 1, now, then,
                              n == 0 ? "" : fmt::format("; it first differs at step {}", done + 1 + n)));
}

// Phases of formats that begin at other steps, because the number of steps that fractions mean is another.
void add_phase_differences(Strings& found, const JobConfig& config, const Json& theirs, int64_t done) {
  const std::optional<JobConfig> before = rate_settings(theirs);
  if (!before) return;
  for (const PhaseStart& start : phase_starts(config.quantize)) {
    const int64_t here = start.first_step(scheduled_steps(config)), there = start.first_step(scheduled_steps(*before));
    if (here != there && std::max(here, there) > done + 1)
      found.push_back(fmt::format("the phase of quantize.phases from {} begins at step {}, with the former number of steps at {}",
                                  start_text(start), here, there));
  }
}

// Relevant fields that differ.
void add_field_differences(Strings& found, const JobConfig& config, const Json& mine, const Json& theirs,
                           const std::function<bool(const std::string&)>& counts) {
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    const Json *here = member_at(mine, field.name), *there = member_at(theirs, field.name);
    if (!counts(field.name) || there == nullptr || *here == *there) continue;
    found.push_back(difference(field.name, *here, *there));
    if (field.name == "training.dtype" && *here == "bfloat16") found.back() += ": its weights lose precision here";
  }
}

// A number of rows over all ranks, and the settings that it follows from.
struct Rows {
  int64_t count = 0;  // -1: all
  std::string from;
};
struct RowCounts {
  Rows step, micro, pass;
};

// `ranks` read rows of their own. None where the configuration does not tell.
std::optional<RowCounts> row_counts(const Json& config, int64_t ranks) {
  const auto number = [&](const char* name, int64_t otherwise) {
    const Json* value = member_at(config, name);
    return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : otherwise;
  };
  const int64_t local = number("training.local_batch_size", 0), global = number("training.global_batch_size", 0);
  if (local == 0 || global == 0) return std::nullopt;
  RowCounts rows;
  rows.step = {global > 0 ? global : local * ranks, fmt::format("training.global_batch_size = {}", global)};
  if (global < 0) rows.step.from += fmt::format(", local_batch_size = {}", local);
  const bool stages = number("parallelism.pipeline_parallel_degree", 1) > 1;
  rows.micro = {local, fmt::format("training.local_batch_size = {}", local)};
  if (const int64_t size = number("parallelism.pipeline_parallel_microbatch_size", 0); stages && size > 0)
    rows.micro = {size, fmt::format("parallelism.pipeline_parallel_microbatch_size = {}", size)};
  const int64_t steps = number("validation.steps", -1), batch = number("validation.local_batch_size", 0);
  rows.pass = {steps < 0 ? -1 : steps * batch * ranks, fmt::format("validation.steps = {}", steps)};
  if (steps >= 0) rows.pass.from += fmt::format(", local_batch_size = {}", batch);
  return rows;
}

void add_row_differences(Strings& found, const Json& mine, const Json& theirs, const RunRows& run, const LoadedStep& step) {
  int64_t ranks_before = 1;
  for (const char* axis : {"dp_replicate", "dp_shard"})
    if (const auto degree = step.mesh().find(axis); degree != step.mesh().end()) ranks_before *= degree->second;
  const std::optional<RowCounts> here = row_counts(mine, run.ranks), there = row_counts(theirs, ranks_before);
  if (!here || !there) return;
  const auto add = [&](const char* what, const Rows& now, const Rows& before) {
    if (now.count == before.count) return;
    found.push_back(fmt::format("{} is {} rows, it was {} ({} with {} data-parallel rank{}, {}{} before)", what, now.count, before.count,
                                now.from, run.ranks, run.ranks == 1 ? "" : "s", now.from == before.from ? "" : before.from + " with ",
                                ranks_before));
  };
  add("the global batch", here->step, there->step);
  if (run.micro_batches_count) add("a micro-batch", here->micro, there->micro);
  const Json* validated = member_at(theirs, "validation.enable");
  if (run.validation_rows == 0 || validated == nullptr || *validated != true) return;
  const auto of_pass = [&](Rows rows) {
    rows.count = rows.count < 0 ? run.validation_rows : std::min(rows.count, run.validation_rows);
    return rows;
  };
  add("a validation pass", of_pass(here->pass), of_pass(there->pass));
}

}  // namespace

Strings model_differences(const ModelDescription& model, const LoadedStep& step) {
  const Json state = saved_state(step);
  const Json* theirs = member_at(state, "model.hyper_parameters");
  if (theirs == nullptr || !theirs->is_object()) return {};
  Json mine = model.json();
  for (const char* name : {"depth_init", "init", "max_seq_len"}) mine.erase(name);  // the weights do not depend on them
  // 0 stands for a width derived from others, which a converted model stores as a number.
  const OptionTable filled = model.hf_parameters();
  const auto follows = [&](const char* name) { return theirs->value(name, Json(0)) == 0; };
  for (const char* name : {"head_dim", "ffn_dim"}) {
    if (!mine.contains(name) || !filled.contains(name)) continue;
    if (follows(name)) {
      mine.erase(name);
    } else {
      mine[name] = std::get<int64_t>(filled.at(name));
    }
  }
  if (!follows("ffn_dim"))
    for (const char* name : {"ffn_dim_multiplier", "multiple_of"}) mine.erase(name);
  Strings found;
  add_differences(found, "model.overrides.", mine, *theirs);
  return found;
}

Strings arithmetic_differences(const JobConfig& config, const LoadedStep& step) {
  const Json mine = Json::parse(to_json(config)), state = saved_state(step), theirs = state.value("config", Json::object());
  const Json* text = member_at(state, "recipe");
  const bool both_texts = config.quantize.recipe_text && text != nullptr && text->is_string();  // then the file names do not matter
  Strings found;
  if (both_texts) add_recipe_differences(found, config.quantize, text->get<std::string>());
  add_field_differences(found, config, mine, theirs, [&](const std::string& name) {
    if (both_texts && name == "quantize.recipe") return false;
    const std::string section(section_of(name));
    return section.starts_with("quantize.")  // the section of a converter is called as that is
               ? uses_converter(mine, section) || uses_converter(theirs, section)
               : section == "quantize" || lists(kArithmetic, name);
  });
  return found;
}

Strings default_differences(const Strings& recipe_lines, const LoadedStep& step) {
  const auto options = [](const Json& lines) {
    Strings found;
    for (const Json& line : lines) {
      if (line.is_string() && line.get<std::string>().find(" with ") != std::string::npos) found.push_back(line);
    }
    return fmt::format("{}", fmt::join(found, "; "));
  };
  const Json state = saved_state(step);
  const Json* theirs = member_at(state, "formats");
  if (theirs == nullptr || !theirs->is_array()) return {};
  const std::string here = options(recipe_lines), there = options(*theirs);
  if (here == there) return {};
  return {fmt::format("unset options of [quantize] had other defaults when it was written, set them to keep them: '{}', it was '{}'", here,
                      there)};
}

Strings training_differences(const JobConfig& config, const LoadedStep& step, const RunRows& run) {
  if (step.step() == 0) return {};
  const Json state = saved_state(step), mine = resolved(Json::parse(to_json(config))),
             theirs = resolved(state.value("config", Json::object()));
  const auto same = [&](const char* key) {
    const Json *here = member_at(run.loader_state, key), *there = member_at(state, std::string("dataloader.") + key);
    return here != nullptr && there != nullptr && *here == *there;
  };
  const bool same_rows = same("source") && same("documents") && same("options");
  Strings found;
  add_field_differences(found, config, mine, theirs, [&](const std::string& name) {
    if (section_of(name) == "optimizer" && is_foreign(config.optimizer, leaf_of(name))) return false;
    if (lists(kIdle, name) || lists(kArithmetic, name) || (same_rows && lists(kData, name))) return false;
    return lists(kTrainingSections, section_of(name)) || lists(kTraining, name);
  });
  add_row_differences(found, mine, theirs, run, step);
  add_schedule_differences(found, config, step, mine, theirs);
  add_phase_differences(found, config, theirs, step.step());
  return found;
}

}  // namespace halftone
