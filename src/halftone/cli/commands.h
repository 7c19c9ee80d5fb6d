#pragma once
#include <span>
#include <string>

// One function per subcommand: gets the arguments after its name, returns the exit status (platform.md 1.4), throws Error
// on bad input.
namespace halftone {

using Arguments = std::span<const std::string>;

int train_command(Arguments args);
int generate_command(Arguments args);
int bench_command(Arguments args);
int formats_command(Arguments args);

}  // namespace halftone
