#pragma once
#include <CLI/CLI.hpp>
#include <string_view>

#include "halftone/cli/commands.h"

namespace halftone {

// Parses; false after --help was printed. In the names of options - and _ are alike. Error: one line that says what is wrong
// and which --help to read.
bool parse(CLI::App& app, Arguments args);

// Whether a word is the option, with - and _ alike.
bool is_option(std::string_view word, std::string_view option);

}  // namespace halftone
