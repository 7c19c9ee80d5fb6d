#include "halftone/cli/config_command.h"

#include <fmt/format.h>

#include <vector>

#include "halftone/base/environment.h"
#include "halftone/cli/commands.h"
#include "halftone/config/load.h"

namespace halftone {
namespace {

constexpr const char* kConfigUsage =
    "halftone config [--config FILE] [--section.field value ...] [--toml | --json]\n"
    "halftone config --help [section]\n\n"
    "Checks a configuration and prints every value with its origin.\n\n";

}  // namespace

int config_command(std::span<const std::string> args) {
  if (const auto section = asked_help(args)) {
    print((section->empty() ? kConfigUsage : "") + describe_fields(*section));
    return 0;
  }
  std::vector<std::string> rest(args.begin(), args.end());
  const auto take = [&](std::string_view flag) { return std::erase(rest, flag) > 0; };
  const bool as_toml = take("--toml"), as_json = take("--json");

  // Without a launcher the number of ranks is unknown: a recipe for 128 of them can still be printed.
  const Environment environment = read_environment();
  const LoadedConfig loaded = load_config(rest, {.world_size = environment.launcher == "none" ? 0 : environment.world_size});
  for (const std::string& line : loaded.compat_lines) fmt::print(stderr, "{}\n", line);
  for (const AcceptedField& field : loaded.accepted) fmt::print(stderr, "{}\n", field.line);
  for (const std::string& line : loaded.warnings) fmt::print(stderr, "warning: {}\n", line);
  print(as_toml ? to_toml(loaded.config) : as_json ? to_json(loaded.config, /*all=*/false) : print_config(loaded));
  return 0;
}

}  // namespace halftone
