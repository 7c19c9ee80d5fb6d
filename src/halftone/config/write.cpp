#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/config/names.h"
#include "halftone/config/rules.h"
#include "halftone/config/value.h"

namespace halftone {
namespace {

// Whether the section is the wanted one or inside it; an empty name wants all.
bool is_inside(std::string_view section, std::string_view wanted) {
  return wanted.empty() || section == wanted || (section.starts_with(wanted) && section[wanted.size()] == '.');
}

void check_section(const ConfigIndex& index, std::string_view wanted) {
  std::vector<std::string_view> names;
  for (const SectionEntry& s : index.sections) names.push_back(s.name);
  check(wanted.empty() || index.find_section(wanted), "unknown section {}{}; halftone config --help lists them", shown(std::string(wanted)),
        nearest_word(wanted, names));
}

// Available fields of one section, without those of the sections inside it.
template <class F>
void for_each_field(const ConfigIndex& index, std::string_view section, F&& f) {
  for (const FieldEntry& field : index.fields) {
    if (section_of(field.name) == section && field.info.mark != Mark::N) f(field);
  }
}

Json without_infinities(const Json& value) {
  if (value.is_number_float() && std::isinf(value.get<double>())) return value.get<double>() > 0 ? "inf" : "-inf";
  if (!value.is_structured()) return value;
  Json out = value;
  for (Json& item : out) item = without_infinities(item);
  return out;
}

// A recipe file or converters forbid most fields of [quantize], and a table of schemes forbids targets: writing them, even as defaults,
// would make the result unreadable. Fields that are not available are in no list.
bool is_left_out(const JobConfig& config, const FieldEntry& field, const Json& value) {
  const bool elsewhere = section_of(field.name) == "quantize" && has_rules_elsewhere(config);
  const bool in_table = field.name == "quantize.targets" && !config.quantize.scheme.table.empty();
  return (elsewhere || in_table) && value == default_value(field.name);
}

constexpr std::string_view kMarks[] = {"", "accepted", "not available", "extension"};

}  // namespace

std::string to_toml(const JobConfig& config) {
  JobConfig copy = config;
  const ConfigIndex index = index_config(copy);
  std::string out;
  for (const SectionEntry& section : index.sections) {
    std::string body;
    for_each_field(index, section.name, [&](const FieldEntry& field) {
      const Json value = get_value(field);
      if (value.is_null() && default_value(field.name).is_null()) return;
      if ((value.is_object() && value.empty()) || is_left_out(config, field, value)) return;
      body += fmt::format("{} = {}\n", leaf_of(field.name), to_toml_text(value));
    });
    if (!body.empty()) out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", section.name, body);
  }
  return out;
}

std::string to_json(const JobConfig& config, bool all) {
  JobConfig copy = config;
  Json root = Json::object();
  for (const FieldEntry& field : index_config(copy).fields) {
    if (!all && field.info.mark == Mark::N) continue;
    Json* at = &root;
    std::string_view rest = field.name;
    for (size_t dot; (dot = rest.find('.')) != std::string_view::npos; rest.remove_prefix(dot + 1))
      at = &(*at)[std::string(rest.substr(0, dot))];
    (*at)[std::string(rest)] = without_infinities(get_value(field));
  }
  return root.dump(2);
}

std::string print_config(const LoadedConfig& loaded, std::string_view wanted) {
  JobConfig copy = loaded.config;
  const ConfigIndex index = index_config(copy);
  check_section(index, wanted);
  std::string out;
  for (const SectionEntry& section : index.sections) {
    if (!is_inside(section.name, wanted)) continue;
    std::string body;
    for_each_field(index, section.name, [&](const FieldEntry& field) {
      const Json value = get_value(field);
      const auto origin = loaded.origin.find(field.name);
      const bool left_out = is_left_out(loaded.config, field, value);
      if (left_out && field.info.scope != Scope::run && field.name != "quantize.scheme" && field.name != "quantize.recipe") {
        body += fmt::format("{:<60}  # see {}\n", fmt::format("# {}", leaf_of(field.name)),
                            !loaded.config.quantize.scheme.table.empty() ? "quantize.scheme"
                            : loaded.config.quantize.recipe.empty()      ? "model.converters"
                                                                         : "quantize.recipe");
        return;
      }
      // A comment when TOML has no such value or the field must not be given: the output is a valid configuration file.
      const std::string text = fmt::format("{}{} = {}", value.is_null() || left_out ? "# " : "", leaf_of(field.name),
                                           value.is_null() ? "None" : to_toml_text(value));
      body += fmt::format("{:<60}  # {}\n", text, origin == loaded.origin.end() ? "default" : origin->second);
    });
    if (!body.empty()) out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", section.name, body);
  }
  return out;
}

std::string describe_fields(std::string_view wanted) {
  JobConfig defaults;
  const ConfigIndex index = index_config(defaults);
  check_section(index, wanted);
  std::string out;
  for (const SectionEntry& section : index.sections) {
    if (!is_inside(section.name, wanted)) continue;
    std::string body;
    for_each_field(index, section.name, [&](const FieldEntry& field) {
      const Json value = get_value(field);
      body +=
          fmt::format("  --{} {} = {}\n      {}", field.name, type_name(field), value.is_null() ? "None" : to_toml_text(value), field.help);
      const std::string_view alto = field.info.alto, unset = alto.empty() ? "None = the scheme's" : "alto: ";
      if (!field.info.schemes.empty())
        body += fmt::format(" ({}{}{}{})", join(field.info.schemes), value.is_null() ? "; " : "", value.is_null() ? unset : "", alto);
      if (!field.info.choices.empty()) body += fmt::format(" [{}]", join(field.info.choices));
      if (field.info.min) body += fmt::format(" [at least {}]", *field.info.min);
      if (field.info.mark != Mark::K) body += fmt::format(" ({})", kMarks[static_cast<int>(field.info.mark)]);
      if (!field.info.note.empty()) body += fmt::format(": {}", field.info.note);
      body += '\n';
    });
    const bool outer = std::any_of(index.sections.begin(), index.sections.end(), [&](const SectionEntry& inner) {
      return inner.name != section.name && is_inside(inner.name, section.name);
    });
    if (body.empty() && !outer && wanted.empty()) continue;  // nothing to set
    out += fmt::format("{}[{}]  {}\n{}", out.empty() ? "" : "\n", section.name, section.help, body);
  }
  return out;
}

}  // namespace halftone
