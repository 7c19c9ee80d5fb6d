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
#include "halftone/config/walk.h"

namespace halftone {

// Input and output of the rules. `origin` holds the fields that were set explicitly.
struct RuleContext {
  std::map<std::string, std::string>& origin;
  const std::set<std::string>& refused;  // fields whose value was refused already, which now hold their default
  int64_t world_size;                    // 0 = unknown
  std::vector<std::string>& problems;
  std::vector<std::string>& compat;
  bool in_recipe_file = false;  // options of a modifier, which needs a scheme
  std::vector<std::string>* warnings = nullptr;
  std::vector<AcceptedField>* accepted = nullptr;  // null: into compat

  bool is_set(const std::string& name) const { return origin.contains(name); }
};

// Applies aliases (converter names, model.tokenizer_path, lm_head), reports fields without effect (mark A) and refuses those that are not
// available (mark N).
void apply_compatibility(JobConfig& config, const RuleContext& context);
// The latter two for one field.
void check_mark(const FieldEntry& field, const RuleContext& context);
// Rules between fields that need no model; messages name the fields.
void check_rules(const JobConfig& config, const RuleContext& context);
// Runs that are legal but senseless: they learn nothing, or one setting undoes another. Certain cases are problems, doubtful ones warnings.
void check_sense(const JobConfig& config, const RuleContext& context);
void check_parallelism(const JobConfig& config, const RuleContext& context);
// `--quantize.scheme none` on the command line turns a file's recipe off, to compare runs. The file's options of that scheme are dropped,
// with one [compat] line for each that is not the default.
void drop_options_of_no_scheme(JobConfig& config, const RuleContext& context);
void check_quantize(const JobConfig& config, const RuleContext& context);
// Entries of quantize.phases, and those of a recipe file if its text was read.
void check_phases(const JobConfig& config, const RuleContext& context);
// Fields that contradict the file of quantize.recipe.
void check_beside_recipe(const JobConfig& config, const std::vector<RecipeModifier>& modifiers, const RuleContext& context);
// Whether a recipe file or converters define the quantization, which forbids most fields of [quantize].
bool has_rules_elsewhere(const JobConfig& config);

bool contains(const auto& list, std::string_view word) { return std::find(list.begin(), list.end(), word) != list.end(); }

// "X.toml:12: " or "command line: ", the origin of the first of these fields that was set, else "".
std::string where(const RuleContext& context, std::initializer_list<const char*> names);

// Adds a problem when `ok` is false, prefixed with the origin of the first of the fields that was set.
template <class... Args>
void rule(const RuleContext& c, bool ok, std::initializer_list<const char*> names, fmt::format_string<Args...> format, Args&&... args) {
  for (const char* name : names) ok = ok || c.refused.contains(name);
  if (!ok) c.problems.push_back(where(c, names) + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace halftone
