#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// One function per subcommand: gets the arguments after its name, returns the exit status (platform.md 1.4), throws Error
// on bad input.
namespace halftone {

using Arguments = std::span<const std::string>;

// To standard output, ended by a newline.
inline void print(std::string_view text) { fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n"); }

// Where --help or -h is among the arguments, the word behind it, which names a section of settings; empty where none follows.
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
int bench_command(Arguments args);
int formats_command(Arguments args);

}  // namespace halftone
