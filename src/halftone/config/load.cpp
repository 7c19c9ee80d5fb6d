#include "halftone/config/load.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/config/command_line.h"
#include "halftone/config/names.h"
#include "halftone/config/recipe_file.h"
#include "halftone/config/rules.h"
#include "halftone/config/toml_reader.h"
#include "halftone/config/value.h"

namespace halftone {
namespace {

constexpr size_t kMostProblems = 50;
constexpr const char* kCommandLine = "command line";

std::string text_of_file(const std::string& path) {
  std::error_code error;
  check(std::filesystem::exists(path, error), "{}: no such configuration file", shown(path));
  check(std::filesystem::is_regular_file(path, error), "{}: expected a configuration file, found something else", shown(path));
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "{}: the configuration file cannot be opened for reading", shown(path));
  std::ostringstream text;
  text << in.rdbuf();
  check(!in.bad(), "{}: the configuration file cannot be read", shown(path));
  return std::move(text).str();
}

// Values of torchtitan, or of specifications, that are not available: a reason instead of the list of choices.
struct RefusedValue {
  std::string_view field, value, reason;
};
constexpr std::string_view kMoments = "is not available; moments are stored in float32 or bfloat16",
                           kReduction = "is not available; gradients are reduced in float32 or bfloat16",
                           kOffload = "cannot be offloaded; training.offload = [\"optimizer\"] moves the optimizer's states";
constexpr RefusedValue kRefusedValues[] = {
    {"model.name", "flux", "is an image model; halftone trains language models"},
    {"model.name", "llama4", "is not available; the mixture-of-experts models are deepseek_v3, qwen3 and gpt_oss"},
    {"model.name", "llama3_ft", "needs torchft, a Python library; use llama3 with checkpoints"},
    {"optimizer.name", "Muon", "is not available; use AdamW, Adam or SGD"},
    {"optimizer.state_dtype", "float8", kMoments},
    {"optimizer.state_dtype", "int8", kMoments},
    {"optimizer.state_dtype", "int4", kMoments},
    {"training.mixed_precision_reduce", "fp8_sr", kReduction},
    {"training.mixed_precision_reduce", "int8_sr", kReduction},
    {"training.offload", "params", kOffload},
    {"training.offload", "grads", kOffload},
    {"training.offload", "activations", kOffload},
    {"comm.mode", "local_tensor", "simulates ranks inside Python; use fake_backend for a dry run"},
    {"checkpoint.exclude_from_loading", "model", "cannot be excluded: nothing would be left to load; use checkpoint.enable = false"},
};

std::string reason_for_refusal(std::string_view field, const Json& value) {
  for (const Json& item : value.is_array() ? value : Json::array({value})) {
    for (const RefusedValue& r : kRefusedValues) {
      if (r.field == field && item == r.value) return fmt::format("{} {}", r.value, r.reason);
    }
  }
  return "";
}

class Loader {
 public:
  Loader() : index_(index_config(loaded_.config)) {}
  Loader(const Loader&) = delete;

  void read_text(std::string_view toml, std::string_view name) {
    const auto is_section = [&](std::string_view s) { return index_.find_section(s) != nullptr; };
    std::vector<TomlItem> items;
    try {
      items = read_toml(toml, name, is_section);
    } catch (const Error& error) {
      problems_.push_back(error.what());
      readable_ = false;
    }
    for (const TomlItem& item : items) {
      if (problems_.size() >= kMostProblems) {
        problems_.push_back(fmt::format("{}:{}: too many problems; the rest of the file was not read", name, item.line));
        readable_ = false;
        return;
      }
      const std::string place = fmt::format("{}:{}", name, item.line);
      if (const FieldEntry* field = index_.find_field(item.name)) {
        store(*field, item.value, place, fmt::format("{}: {}", place, field->name));
      } else if (index_.find_section(item.name)) {
        problems_.push_back(fmt::format("{}: expected a section [{}], found {}", place, item.name, shown(item.value)));
      } else {
        const std::string text = shown(item.name);
        problems_.push_back(fmt::format("{}: unknown {} {}{}", place, item.value.is_object() ? "section" : "option",
                                        text.substr(1, text.size() - 2), advice_for_unknown(item.name, index_)));
      }
    }
  }

  void read_file(const std::string& path) {
    std::string text;
    try {
      text = text_of_file(path);
    } catch (const Error& error) {
      problems_.push_back(error.what());
      readable_ = false;
    }
    if (readable_) read_text(text, path);
  }

  void apply(const std::vector<Override>& overrides) {
    for (const Override& o : overrides) {
      Json value = o.value;
      if (!o.key.empty()) {
        value = get_value(*o.field);
        value[o.key] = o.value;
      }
      store(*o.field, value, kCommandLine, fmt::format("{}: --{}", kCommandLine, o.field->name));
    }
  }

  std::vector<Override> parse(std::span<const std::string> args) { return read_command_line(args, index_, problems_, refused_); }

  // The file is read before the command line is applied over it.
  std::optional<std::string> config_file(const std::vector<Override>& overrides) const {
    std::optional<std::string> path;
    for (const Override& o : overrides) {
      if (o.field->name == "job.config_file") path = o.value.is_string() ? std::optional(o.value.get<std::string>()) : std::nullopt;
    }
    return path == "None" || path == "none" || path == "null" ? std::nullopt : path;
  }

  // with_recipe: whether to open the recipe file.
  LoadedConfig finish(const ConfigContext& context, bool with_recipe) {
    if (readable_) {
      const bool simulated = loaded_.config.comm.mode == "fake_backend" && context.simulated_world_size > 0;
      const int64_t world = simulated ? context.simulated_world_size : context.world_size;
      const RuleContext rules{loaded_.origin,    refused_,         world, problems_, loaded_.compat_lines, false,
                              &loaded_.warnings, &loaded_.accepted};
      apply_compatibility(loaded_.config, rules);
      if (with_recipe) check_recipe_file(rules);
      check_rules(loaded_.config, rules);
    }
    if (!problems_.empty()) {
      std::string all;
      for (const std::string& p : problems_) all += (all.empty() ? "" : "\n") + p;
      throw Error(all);
    }
    return std::move(loaded_);
  }

 private:
  void check_recipe_file(const RuleContext& rules) {
    QuantizeConfig& quantize = loaded_.config.quantize;
    try {
      read_recipe_text(quantize);
      if (quantize.recipe_text) check_beside_recipe(loaded_.config, recipe_modifiers(quantize), rules);
    } catch (const Error& error) {
      problems_.push_back(error.what());
    }
  }

  void store(const FieldEntry& field, const Json& value, const std::string& origin, const std::string& prefix) {
    std::string problem = set_value(field, value);
    if (problem.empty()) {
      loaded_.origin[field.name] = origin;
      return;
    }
    if (const std::string reason = reason_for_refusal(field.name, value); !reason.empty()) {
      problem = reason;
    } else if (value.is_string() && problem.starts_with("expected one of")) {
      problem += nearest_word(value.get<std::string>(), field.info.choices);
    }
    problems_.push_back(fmt::format("{}: {}", prefix, problem));
    refused_.insert(field.name);
  }

  LoadedConfig loaded_;
  ConfigIndex index_;
  std::vector<std::string> problems_;
  std::set<std::string> refused_;
  bool readable_ = true;  // the file is TOML; if not, rules would complain about defaults
};

}  // namespace

bool LoadedConfig::from_command_line(const std::string& field) const {
  const auto at = origin.find(field);
  return at != origin.end() && at->second == kCommandLine;
}

LoadedConfig load_config(std::span<const std::string> args, const ConfigContext& context) {
  Loader loader;
  const std::vector<Override> overrides = loader.parse(args);
  if (const auto path = loader.config_file(overrides)) loader.read_file(*path);
  loader.apply(overrides);
  return loader.finish(context, /*with_recipe=*/true);
}

LoadedConfig load_config_text(std::string_view toml, std::string_view name, std::span<const std::string> args,
                              const ConfigContext& context) {
  Loader loader;
  const std::vector<Override> overrides = loader.parse(args);
  loader.read_text(toml, name);
  loader.apply(overrides);
  return loader.finish(context, /*with_recipe=*/false);
}

JobConfig config_from_json(std::string_view text) {
  const Json root = text.size() <= (4 << 20) ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
  check(root.is_object(), "configuration: expected a JSON object, found something else");
  JobConfig config;
  const ConfigIndex index = index_config(config);
  const auto read = [&](const auto& self, const Json& object, const std::string& prefix) -> void {
    for (const auto& [key, value] : object.items()) {
      const std::string name = prefix + key;
      if (const FieldEntry* field = index.find_field(name)) {
        const bool infinite = (value == "inf" || value == "-inf") && !std::holds_alternative<std::string*>(field->value);
        const Json number = value == "inf" ? HUGE_VAL : -HUGE_VAL;  // JSON has no infinity; to_json writes a word
        const std::string problem = set_value(*field, infinite ? number : value);
        check(problem.empty(), "configuration: {}: {}", name, problem);
      } else {
        check(index.find_section(name) != nullptr, "configuration: unknown field {}", shown(name));
        check(value.is_object(), "configuration: {}: expected an object, found {}", name, shown(value));
        self(self, value, name + ".");
      }
    }
  };
  read(read, root, "");
  return config;
}

}  // namespace halftone
