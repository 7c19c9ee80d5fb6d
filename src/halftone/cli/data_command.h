#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone data PATH [...]`: looks at a data source before a run: sizes, lengths, duplicates, damage, and the first rows as a model sees
// them. `--help` prints the options. Returns the exit status; throws Error.
int data_command(std::span<const std::string> args);

}  // namespace halftone
