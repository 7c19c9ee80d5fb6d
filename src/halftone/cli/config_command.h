#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone config [--config FILE] [--section.field value ...] [--toml | --json]`: checks the configuration and prints it with the origin
// of each value, or as TOML or JSON. Uses no device. `--help [section]` documents every field. Returns the exit status; throws Error for an
// invalid configuration.
int config_command(std::span<const std::string> args);

}  // namespace halftone
