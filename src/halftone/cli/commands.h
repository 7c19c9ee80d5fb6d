#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// One function for each subcommand. It gets the arguments after its name, returns the exit status (platform.md 1.4) and throws Error on bad
// input.
namespace halftone {

using Arguments = std::span<const std::string>;

// Prints to standard output, with a newline at the end.
inline void print(std::string_view text) { fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n"); }

// The word after --help or -h, which names a section of settings, or "" if none follows; nullopt without --help.
inline std::optional<std::string> asked_help(Arguments args) {
  const auto at = std::find_if(args.begin(), args.end(), [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (at == args.end()) return std::nullopt;
  std::string section = at + 1 == args.end() || at[1].starts_with('-') ? "" : at[1];
  std::replace(section.begin(), section.end(), '-', '_');
  return section;
}

int train_command(Arguments args);
int generate_command(Arguments args);
int convert_command(Arguments args);
int estimate_command(Arguments args);
int plan_command(Arguments args);
int bench_command(Arguments args);
int formats_command(Arguments args);

}  // namespace halftone
