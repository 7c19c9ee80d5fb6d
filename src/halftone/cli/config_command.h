#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone config [--config FILE] [--section.field value ...] [--toml | --json]`: checks the configuration and prints it
// with the origin of each value (or as TOML, JSON); touches no device. `--help [section]` prints the documentation of
// every field. Returns the exit status; throws Error for a configuration that is wrong.
int config_command(std::span<const std::string> args);

}  // namespace halftone
