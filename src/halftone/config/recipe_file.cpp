#include "halftone/config/recipe_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "halftone/base/error.h"
#include "halftone/config/names.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/rules.h"
#include "halftone/config/yaml_reader.h"
#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

constexpr size_t kMostProblems = 50;
constexpr std::string_view kModifier = "LowPrecisionTrainingModifier";

// llm-compressor's names that have no effect here: of modifiers that quantize or prune a trained model, and of arguments that it parses
// and ignores, too.
constexpr std::string_view kPostTraining =
    "QuantizationModifier GPTQModifier AWQModifier SelfDistillationModifier WandaModifier SparseGPTModifier MagnitudeModifier AdmmModifier "
    "AlpsModifier ObsModifier WandaStructuredModifier AdmmStructuredModifier CosineSimilarityModifier";
constexpr std::string_view kUnused = "index group start end update";
constexpr std::string_view kOfPhases = "from first_layers last_layers";

class Reader {
 public:
  Reader(std::string_view text, std::string_view name) : name_(name), document_(read_yaml(text, name)) {}

  std::vector<RecipeModifier> run() {
    if (!document_.root.is_object()) {
      problem("", "expected a map of stages (training_stage: ...), found {}", shown(document_.root));
    } else {
      for_each(document_.root, "", "_stage", "a stage", [&](const Json& stage, const std::string& path) {
        for_each(stage, path, "_modifiers", "a group of modifiers", [&](const Json& group, const std::string& inside) {
          for (const auto& [key, arguments] : group.items()) read_modifier(key, arguments, inside + "/" + key);
        });
      });
    }
    if (problems_.empty() && modifiers_.empty()) problem("", "holds no {}", kModifier);
    if (problems_.size() > kMostProblems) {
      problems_.resize(kMostProblems);
      problems_.push_back(fmt::format("{}: too many problems; the rest is not shown", name_));
    }
    if (!problems_.empty()) throw Error(fmt::format("{}", fmt::join(problems_, "\n")));
    return std::move(modifiers_);
  }

 private:
  std::string place(const std::string& path) const {
    const auto found = document_.line_of.find(path);
    return found == document_.line_of.end() ? std::string(name_) : fmt::format("{}:{}", name_, found->second);
  }

  template <class... Args>
  void problem(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format("{}: {}", place(path), fmt::format(format, std::forward<Args>(args)...)));
  }

  static std::string unquoted(std::string_view key) {
    const std::string text = shown(std::string(key));
    return text.substr(1, text.size() - 2);
  }

  // The maps of one level, whose keys end in `ending`.
  template <class F>
  void for_each(const Json& map, const std::string& path, std::string_view ending, std::string_view what, F&& f) {
    for (const auto& [key, value] : map.items()) {
      const std::string here = path + "/" + key;
      if (!key.ends_with(ending)) {
        problem(here, "unknown key {}; expected {}, whose name ends in {}", unquoted(key), what, ending);
      } else if (!value.is_object()) {
        problem(here, "{}: expected a map, found {}", unquoted(key), shown(value));
      } else {
        f(value, here);
      }
    }
  }

  void read_modifier(const std::string& key, const Json& arguments, const std::string& path) {
    if (find_word(kPostTraining, key)) {
      problem(path, "{} works on a trained model, not in training; expected {}", key, kModifier);
    } else if (key != kModifier) {
      problem(path, "unknown modifier {}; expected {}{}", unquoted(key), kModifier, nearest_word(key, {kModifier}));
    } else if (!arguments.is_object()) {
      problem(path, "{}: expected a map of its arguments, found {}", kModifier, shown(arguments));
    } else {
      read_arguments(arguments, path);
    }
  }

  void read_arguments(const Json& arguments, const std::string& path) {
    JobConfig job;
    job.quantize.preset = "alto";
    const ConfigIndex index = index_config(job);
    std::vector<std::string_view> known;
    for (const FieldEntry& field : index.fields) {
      const bool elsewhere = field.name == "quantize.recipe" || field.name == "quantize.phases";
      if (section_of(field.name) == "quantize" && !elsewhere) known.push_back(leaf_of(field.name));
    }
    Json phase = Json::object();
    for (const auto& [key, value] : arguments.items()) {
      if (!find_word(kUnused, key)) phase[key] = value;
    }
    if (std::ranges::any_of(phase.items(), [](const auto& item) { return find_word(kOfPhases, item.key()).has_value(); }))
      return add_phase(phase, job.quantize, path);
    std::map<std::string, std::string> origin;
    std::set<std::string> refused;
    for (const auto& [key, value] : arguments.items()) {
      const std::string here = path + "/" + key;
      if (find_word(kUnused, key)) continue;
      if (!contains(known, key)) {
        problem(here, "unknown argument {} of {}{}", unquoted(key), kModifier, nearest_word(key, known));
        continue;
      }
      const FieldEntry& field = *index.find_field("quantize." + key);
      std::string wrong = set_value(field, value);
      origin[field.name] = place(here);
      if (!wrong.empty()) {
        if (value.is_string() && wrong.starts_with("expected one of")) wrong += nearest_word(value.get<std::string>(), field.info.choices);
        problem(here, "{}: {}", key, wrong);
        refused.insert(field.name);
      }
    }
    std::vector<std::string> compat;
    const RuleContext context{origin, refused, 0, problems_, compat, /*in_recipe_file=*/true};
    for (const FieldEntry& field : index.fields) {
      if (field.info.mark == Mark::N) check_mark(field, context);
    }
    if (!arguments.contains("scheme")) {
      std::vector<std::string_view> schemes = quantize_schemes();
      std::erase(schemes, "none");
      problem(path, "{} names no scheme; expected one of {}", kModifier, join(schemes));
      return;
    }
    if (!refused.contains("quantize.scheme") && job.quantize.scheme.is_none()) {
      problem(path + "/scheme", "scheme: expected one that quantizes, or bf16 to keep the targets unquantized; found none");
      return;
    }
    check_quantize(job, context);
    modifiers_.push_back({job.quantize, place(path)});
  }

  void add_phase(const Json& arguments, const QuantizeConfig& defaults, const std::string& path) {
    RecipeModifier m{defaults, place(path), QuantizePhase()};
    if (const std::string wrong = set_phase(*m.phase, arguments); !wrong.empty()) problem(path, "{}", wrong);
    modifiers_.push_back(std::move(m));
  }

  std::string_view name_;
  YamlDocument document_;
  std::vector<std::string> problems_;
  std::vector<RecipeModifier> modifiers_;
};

}  // namespace

std::vector<RecipeModifier> read_recipe(std::string_view text, std::string_view name) { return Reader(text, name).run(); }

void read_recipe_text(QuantizeConfig& quantize) {
  const std::string& path = quantize.recipe;
  if (path.empty() || quantize.recipe_text) return;
  std::error_code error;
  check(std::filesystem::exists(path, error), "{}: no such recipe file (quantize.recipe)", shown(path));
  check(std::filesystem::is_regular_file(path, error), "{}: expected a recipe file (quantize.recipe), found something else", shown(path));
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "{}: the recipe file cannot be opened for reading", shown(path));
  const auto size = static_cast<size_t>(in.seekg(0, std::ios::end).tellg());
  check(size <= kMaxYamlBytes, "{}: expected a recipe file of at most {} bytes, found {}", shown(path), kMaxYamlBytes, size);
  std::string text(size, '\0');
  in.seekg(0).read(text.data(), static_cast<std::streamsize>(size));
  check(in.good() || size == 0, "{}: the recipe file cannot be read", shown(path));
  quantize.recipe_text = std::move(text);
}

std::vector<RecipeModifier> recipe_modifiers(const QuantizeConfig& quantize) {
  QuantizeConfig read = quantize;
  read_recipe_text(read);
  return read.recipe_text ? read_recipe(*read.recipe_text, read.recipe) : std::vector<RecipeModifier>();
}

}  // namespace halftone
