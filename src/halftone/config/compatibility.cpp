#include <fmt/format.h>

#include "halftone/config/rules.h"
#include "halftone/config/value.h"

namespace halftone {
namespace {

std::string line_of(std::string_view name, const Json& value, std::string_view note) {
  std::string text = value.is_null() ? "None" : to_toml_text(value);
  if (value.is_string()) text = text.substr(1, text.size() - 2);
  return fmt::format("[compat] {}={}: {}", name, text, note);
}

void say(const RuleContext& context, std::string_view name, const Json& value, std::string_view note) {
  context.compat.push_back(line_of(name, value, note));
}

// lm_head is Hugging Face's name of the output layer.
void rename_head(StringList& names, std::string_view field, const RuleContext& context) {
  for (std::string& name : names) {
    if (name != "lm_head") continue;
    say(context, field, name, "the module is called output");
    name = "output";
  }
}

void apply_aliases(JobConfig& config, const RuleContext& context) {
  for (std::string& name : config.model.converters) {
    if (name != "float8" && name != "mx") continue;
    say(context, "model.converters", name, fmt::format("another version's name of quantize.linear.{}", name));
    name = "quantize.linear." + name;
  }
  if (config.model.tokenizer_path) {
    if (context.is_set("model.hf_assets_path") && config.model.hf_assets_path != *config.model.tokenizer_path) {
      context.problems.push_back(
          where(context, {"model.tokenizer_path"}) +
          "model.tokenizer_path and model.hf_assets_path differ; the first is the old name of the second: keep the second");
    }
    say(context, "model.tokenizer_path", *config.model.tokenizer_path, "used as model.hf_assets_path");
    config.model.hf_assets_path = *config.model.tokenizer_path;
    config.model.tokenizer_path.reset();
    context.origin["model.hf_assets_path"] = context.origin["model.tokenizer_path"];
  }
  if (config.parallelism.module_fqns_per_model_part) {
    for (StringList& part : *config.parallelism.module_fqns_per_model_part)
      rename_head(part, "parallelism.module_fqns_per_model_part", context);
  }
  rename_head(config.quantize.linear.float8.filter_fqns, "quantize.linear.float8.filter_fqns", context);
  rename_head(config.quantize.linear.mx.filter_fqns, "quantize.linear.mx.filter_fqns", context);
  if (config.parallelism.expert_parallel_comm_backend == "deepep")
    say(context, "parallelism.expert_parallel_comm_backend", "deepep", "halftone's own dispatcher is used");
  if (const std::string& name = config.optimizer.implementation; name == "foreach" || name == "for-loop")
    say(context, "optimizer.implementation", name, "the fused kernel is used");
  if (config.checkpoint.async_mode == "async_with_pinned_mem")
    say(context, "checkpoint.async_mode", config.checkpoint.async_mode, "the same as async, which copies a GPU's state to pinned memory");
}

}  // namespace

std::string where(const RuleContext& context, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto found = context.origin.find(name); found != context.origin.end()) return found->second + ": ";
  }
  return "";
}

void check_mark(const FieldEntry& field, const RuleContext& context) {
  if (field.info.mark != Mark::A && field.info.mark != Mark::N) return;
  const Json value = get_value(field);
  if (value == default_value(field.name)) return;
  if (field.info.mark == Mark::A) {
    std::string line = line_of(field.name, value, field.info.note);
    if (context.accepted != nullptr) return context.accepted->push_back({field.name, std::move(line)});
    context.compat.push_back(std::move(line));
  } else if (field.name == "job.custom_config_module" && value == "torchtitan.components.ft.config") {
    say(context, field.name, value, "its fields are part of [fault_tolerance]");
  } else {
    context.problems.push_back(fmt::format("{}{} = {} is not available: {}; remove it or leave it at {}",
                                           where(context, {field.name.c_str()}), field.name, to_toml_text(value), field.info.note,
                                           to_toml_text(default_value(field.name))));
  }
}

void apply_compatibility(JobConfig& config, const RuleContext& context) {
  apply_aliases(config, context);
  drop_options_of_no_scheme(config, context);
  for (const FieldEntry& field : index_config(config).fields) check_mark(field, context);
}

}  // namespace halftone
