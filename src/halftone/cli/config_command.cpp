#include "halftone/cli/config_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/cli/commands.h"
#include "halftone/config/load.h"

namespace halftone {
namespace {

int print_help(std::string_view section) {
  if (section.empty()) {
    print(
        "halftone config [--config FILE] [--section.field value ...] [--toml | --json]\n"
        "halftone config --help [section]\n\n"
        "Checks a configuration and prints it, with the origin of each value.\n");
  }
  print(describe_fields(section));
  return 0;
}

}  // namespace

int config_command(std::span<const std::string> args) {
  std::vector<std::string> rest(args.begin(), args.end());
  const auto take = [&](std::string_view flag) { return std::erase(rest, flag) > 0; };
  if (const auto help = std::find(rest.begin(), rest.end(), "--help"); help != rest.end()) {
    return print_help(help + 1 != rest.end() ? std::string_view(*(help + 1)) : std::string_view{});
  }
  const bool as_toml = take("--toml"), as_json = take("--json");

  // Without a launcher the number of processes is not known, and a recipe for 128 of them can still be looked at.
  const Environment environment = read_environment();
  const LoadedConfig loaded = load_config(rest, {.world_size = environment.launcher == "none" ? 0 : environment.world_size});
  for (const std::string& line : loaded.compat_lines) fmt::print(stderr, "{}\n", line);
  print(as_toml ? to_toml(loaded.config) : as_json ? to_json(loaded.config) : print_config(loaded));
  return 0;
}

}  // namespace halftone
