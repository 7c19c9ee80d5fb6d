#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"

namespace halftone {

// Facts about the run that the rules between fields need.
struct ConfigContext {
  int64_t world_size = 1;            // ranks; 0 = unknown: rules that need it are skipped
  int64_t simulated_world_size = 0;  // replaces it with comm.mode = fake_backend; 0 = the same
};

// A field that is accepted and has no effect (mark A), and the line that says why.
struct AcceptedField {
  std::string name, line;
};

struct LoadedConfig {
  JobConfig config;
  std::map<std::string, std::string> origin;  // dotted field -> "FILE:LINE" or "command line"; absent = default
  std::vector<std::string> compat_lines;      // "[compat] ...": settings that mean something else here
  std::vector<AcceptedField> accepted;
  std::vector<std::string> warnings;  // legal, and probably not intended
  bool from_command_line(const std::string& field) const;
};

// Reads the arguments after the subcommand: `--config FILE` (or `--job.config_file FILE`) and `--section.field value`, in every spelling of
// docs/configuration.md. The command line overrides the file, the file the defaults. Throws Error that lists all problems, one a line.
LoadedConfig load_config(std::span<const std::string> args, const ConfigContext& context = {});

// The same from a text, without opening any file; `name` is the name of the text in messages.
LoadedConfig load_config_text(std::string_view toml, std::string_view name, std::span<const std::string> args = {},
                              const ConfigContext& context = {});

// The resolved configuration, which reads back as the same one. Optional fields without a value are omitted, or "None" when the default is
// a value. Fields that are not available (mark N) are omitted, from JSON only if `all` is false.
std::string to_toml(const JobConfig& config);
std::string to_json(const JobConfig& config, bool all = true);
// The inverse of to_json, for configurations in checkpoints. Missing fields keep their default, unknown ones are an error.
JobConfig config_from_json(std::string_view json);

// Output of `halftone config`: every section and field, with its value and origin; of one section if given.
std::string print_config(const LoadedConfig& loaded, std::string_view section = {});
// Documentation of every field, or of one section: name, type, default, allowed values, meaning.
std::string describe_fields(std::string_view section = {});

}  // namespace halftone
