#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "halftone/config/value.h"

namespace halftone {

// One setting of the command line, parsed as a value of its field.
struct Override {
  const FieldEntry* field = nullptr;
  std::string key;  // the one name of a table field that is set (`--model.overrides.n_layers 2`), else empty
  Json value;
};

// Reads `--section.field value` in all its spellings (docs/configuration.md). Adds what cannot be parsed to `problems` and its field to
// `refused`, and continues. `--config` and `--device` are short for job.config_file and training.device.
std::vector<Override> read_command_line(std::span<const std::string> args, const ConfigIndex& index, std::vector<std::string>& problems,
                                        std::set<std::string>& refused);

}  // namespace halftone
