#pragma once
#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

// One function per subcommand: gets the arguments after its name, returns the exit status (platform.md 1.4), throws Error
// on bad input.
namespace halftone {

using Arguments = std::span<const std::string>;

// To standard output, ended by a newline.
inline void print(std::string_view text) { fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n"); }

int train_command(Arguments args);
int generate_command(Arguments args);
int bench_command(Arguments args);
int formats_command(Arguments args);

}  // namespace halftone
