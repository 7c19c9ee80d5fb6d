#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "halftone/config/job_config.h"

namespace halftone {

// The types of settings.
using FieldPointer = std::variant<bool*, int64_t*, double*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                                  std::optional<double>*, std::optional<std::string>*, StringList*, std::optional<StringList>*,
                                  std::vector<StringList>*, std::optional<std::vector<StringList>>*, OptionTable*, NamedTables*,
                                  std::vector<ParamGroup>*, QuantizeScheme*, std::vector<QuantizePhase>*>;

struct FieldEntry {
  std::string name;  // dotted: "training.dataloader.packing"
  FieldPointer value;
  std::string_view help;
  FieldInfo info;
};

struct SectionEntry {
  std::string name;
  std::string_view help;
};

// A configuration as a flat list in the order of its structs. Points into that configuration.
struct ConfigIndex {
  std::vector<FieldEntry> fields;
  std::vector<SectionEntry> sections;  // a section precedes the sections inside it

  const FieldEntry* find_field(std::string_view name) const;
  const SectionEntry* find_section(std::string_view name) const;
};

ConfigIndex index_config(JobConfig& config);
// The options of one scheme, named as in a configuration: "quantize.use_hadamard".
ConfigIndex index_options(RecipeOptions& options);
// All fields of an entry of quantize.phases, named alike.
ConfigIndex index_phase(QuantizePhase& phase);

// "training.dataloader.packing" -> "training.dataloader" and "packing"; a name without a dot has the section "".
std::string_view section_of(std::string_view name);
std::string_view leaf_of(std::string_view name);

}  // namespace halftone
