#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "halftone/config/load.h"
#include "halftone/config/recipe_file.h"

namespace halftone {

// What the rules see and what they say. `origin` holds the fields that were set on purpose.
struct RuleContext {
  std::map<std::string, std::string>& origin;
  const std::set<std::string>& refused;  // fields whose value was refused already: their default would mislead a rule
  int64_t world_size;                    // 0 = unknown
  std::vector<std::string>& problems;
  std::vector<std::string>& compat;
  bool in_recipe_file = false;  // the options of a modifier, whose scheme must be one
  std::vector<std::string>* warnings = nullptr;

  bool is_set(const std::string& name) const { return origin.contains(name); }
};

// Applies accepted aliases (converter names, model.tokenizer_path, lm_head), reports settings that are mapped or
// ignored (mark A) and refuses those that can not apply (mark N).
void apply_compatibility(JobConfig& config, const RuleContext& context);
// Rules between fields (platform rules that need no model), each naming the fields.
void check_rules(const JobConfig& config, const RuleContext& context);
// Runs that are legal and senseless: nothing can be learnt, or a setting undoes another. What is certainly so is a problem, what may be
// meant a warning.
void check_sense(const JobConfig& config, const RuleContext& context);
void check_parallelism(const JobConfig& config, const RuleContext& context);
// Switching a recipe's scheme off on the command line is how runs are compared: the file's options of that scheme are
// then dropped, with one [compat] line for each that asks for something.
void drop_options_of_no_scheme(JobConfig& config, const RuleContext& context);
void check_quantize(const JobConfig& config, const RuleContext& context);
// Fields of the run that contradict the recipe file of quantize.recipe.
void check_beside_recipe(const JobConfig& config, const std::vector<RecipeModifier>& modifiers, const RuleContext& context);
// Whether a recipe file or converters say how the run is quantised: most fields of [quantize] must not be given then.
bool has_rules_elsewhere(const JobConfig& config);

bool contains(const auto& list, std::string_view word) { return std::find(list.begin(), list.end(), word) != list.end(); }

// "X.toml:12: " or "command line: " of the first of these fields that was set, else "".
std::string where(const RuleContext& context, std::initializer_list<const char*> names);

// Collects a problem when `ok` is false, after the place where the first of the fields was set.
template <class... Args>
void rule(const RuleContext& c, bool ok, std::initializer_list<const char*> names, fmt::format_string<Args...> format, Args&&... args) {
  for (const char* name : names) ok = ok || c.refused.contains(name);
  if (!ok) c.problems.push_back(where(c, names) + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace halftone
