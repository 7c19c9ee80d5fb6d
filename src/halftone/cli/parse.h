#pragma once
#include <CLI/CLI.hpp>
#include <string_view>

#include "halftone/cli/commands.h"

namespace halftone {

// Parses the arguments; false after --help was printed. In option names - equals _. Error: one line that says what is wrong and which
// --help to read.
bool parse(CLI::App& app, Arguments args);

// Whether a word is the option, with - and _ alike.
bool is_option(std::string_view word, std::string_view option);

}  // namespace halftone
