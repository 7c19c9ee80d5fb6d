#include "halftone/config/walk.h"

namespace halftone {
namespace {

template <class S>
void collect(S& section, const std::string& prefix, ConfigIndex& index) {
  S::fields(section, [&](std::string_view name, auto& member, std::string_view help, const FieldInfo& info = {}) {
    const std::string dotted = prefix + std::string(name);
    if constexpr (Section<std::remove_reference_t<decltype(member)>>) {
      index.sections.push_back({dotted, help});
      collect(member, dotted + ".", index);
    } else {
      index.fields.push_back({dotted, &member, help, info});
    }
  });
}

}  // namespace

ConfigIndex index_config(JobConfig& config) {
  ConfigIndex index;
  collect(config, "", index);
  return index;
}

ConfigIndex index_options(RecipeOptions& options) {
  ConfigIndex index;
  collect(options, "quantize.", index);
  return index;
}

const FieldEntry* ConfigIndex::find_field(std::string_view name) const {
  for (const FieldEntry& f : fields) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

const SectionEntry* ConfigIndex::find_section(std::string_view name) const {
  for (const SectionEntry& s : sections) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

std::string_view section_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
}

std::string_view leaf_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace halftone
