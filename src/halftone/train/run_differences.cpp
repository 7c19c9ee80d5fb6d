#include "halftone/train/run_differences.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/config/names.h"
#include "halftone/config/recipe_file.h"
#include "halftone/config/walk.h"
#include "halftone/train/run_state.h"

namespace halftone {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

// Fields outside [quantize] that say what a run computes and stores in.
constexpr std::array<std::string_view, 6> kArithmetic = {"model.converters",
                                                         "training.dtype",
                                                         "training.mixed_precision_param",
                                                         "training.mixed_precision_residual",
                                                         "training.mixed_precision_reduce",
                                                         "optimizer.state_dtype"};

std::string difference(std::string_view name, const Json& here, const Json& there) {
  return fmt::format("{} is {}, there {}", name, here.dump(), there.dump());
}

// Members that both objects have with other values.
void add_differences(Strings& found, const std::string& prefix, const Json& mine, const Json& theirs) {
  for (const auto& [name, value] : mine.items()) {
    if (theirs.is_object() && theirs.contains(name) && theirs[name] != value)
      found.push_back(difference(prefix + name, value, theirs[name]));
  }
}

// What stands at "section.name" of nested objects; none where nothing does.
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
  return Json::parse(to_json(config)).at("quantize");
}

// By meaning: comments and the order of keys are no differences.
void add_recipe_differences(Strings& found, const QuantizeConfig& mine, const std::string& their_text) {
  const std::vector<RecipeModifier> here = recipe_modifiers(mine);
  std::vector<RecipeModifier> there;
  try {
    there = read_recipe(their_text, mine.recipe);
  } catch (const Error&) {
    found.push_back(fmt::format("{} stands for a recipe there that this build does not read", mine.recipe));
    return;
  }
  if (here.size() != there.size()) found.push_back(fmt::format("{} has {} modifiers, there {}", mine.recipe, here.size(), there.size()));
  for (size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    add_differences(found, here[i].place + ": ", options_of(here[i]), options_of(there[i]));
}

}  // namespace

Strings model_differences(const std::string& model_json, const LoadedStep& step) {
  const Json state = saved_state(step);
  Json mine = Json::parse(model_json);
  mine.erase("depth_init");  // of fresh weights alone
  Strings found;
  if (const Json* theirs = member_at(state, "model.hyper_parameters")) add_differences(found, "", mine, *theirs);
  return found;
}

Strings arithmetic_differences(const JobConfig& config, const LoadedStep& step) {
  const Json mine = Json::parse(to_json(config)), state = saved_state(step), theirs = state.value("config", Json::object());
  const Json* text = member_at(state, "recipe");
  const bool both_texts = config.quantize.recipe_text && text != nullptr && text->is_string();  // the files' names say nothing then
  Strings found;
  if (both_texts) add_recipe_differences(found, config.quantize, text->get<std::string>());
  JobConfig copy = config;
  for (const FieldEntry& field : index_config(copy).fields) {
    const std::string section(section_of(field.name));
    const bool counts = section.starts_with("quantize.")  // the section of a converter is called as that is
                            ? uses_converter(mine, section) || uses_converter(theirs, section)
                            : section == "quantize" || std::count(kArithmetic.begin(), kArithmetic.end(), field.name) > 0;
    const Json *here = member_at(mine, field.name), *there = member_at(theirs, field.name);
    if (!counts || (both_texts && field.name == "quantize.recipe") || there == nullptr || *here == *there) continue;
    found.push_back(difference(field.name, *here, *there));
    if (field.name == "training.dtype" && *here == "bfloat16") found.back() += ": its weights lose bits here";
  }
  return found;
}

}  // namespace halftone
