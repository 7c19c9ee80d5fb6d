#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"

namespace halftone {

// What the rules between fields need to know about the run.
struct ConfigContext {
  int64_t world_size = 1;            // processes; 0 = unknown, rules that need it are left out
  int64_t simulated_world_size = 0;  // of comm.mode = fake_backend, in place of it; 0 = the same
};

struct LoadedConfig {
  JobConfig config;
  std::map<std::string, std::string> origin;  // dotted field -> "FILE:LINE" or "command line"; absent = default
  std::vector<std::string> compat_lines;      // "[compat] ...": settings that were accepted and mapped or ignored
  std::vector<std::string> warnings;          // what is allowed and hardly meant
  bool from_command_line(const std::string& field) const;
};

// Reads the arguments that follow the subcommand: `--config FILE` (or `--job.config_file FILE`) and
// `--section.field value` in every spelling of docs/configuration.md. Command line over file over default. Throws Error
// whose message lists all problems found, one per line.
LoadedConfig load_config(std::span<const std::string> args, const ConfigContext& context = {});

// The same from a text, without looking at any file; `name` is how messages call the text.
LoadedConfig load_config_text(std::string_view toml, std::string_view name, std::span<const std::string> args = {},
                              const ConfigContext& context = {});

// The resolved configuration; reading it again gives the same configuration. Optional fields without a value are left
// out, or are written "None" where the default has one.
std::string to_toml(const JobConfig& config);
std::string to_json(const JobConfig& config);
// The inverse of to_json (configurations inside checkpoints); fields that are missing keep their default, unknown ones
// are an error.
JobConfig config_from_json(std::string_view json);

// What `halftone config` prints: every section and field, its value and where it came from. `section` limits it.
std::string print_config(const LoadedConfig& loaded, std::string_view section = {});
// Documentation of every field (or of one section): name, type, default, allowed values, meaning.
std::string describe_fields(std::string_view section = {});

}  // namespace halftone
