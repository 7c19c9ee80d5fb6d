#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone tokenizer train|encode|decode|info|bench ...`: args are the words after `tokenizer`. Returns the exit status; throws Error for
// bad input. `--help` prints the options of each.
int tokenizer_command(std::span<const std::string> args);

}  // namespace halftone
