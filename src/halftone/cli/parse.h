#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/cli/commands.h"

namespace halftone {

// Parses the arguments; false after --help was printed. In option names - equals _. Error: one line that says what is wrong and which
// --help to read.
bool parse(CLI::App& app, Arguments args);

// Whether a word is the option, with - and _ alike.
bool is_option(std::string_view word, std::string_view option);

// Removes "option value" or "option=value" wherever it is, and returns the last value; none: it is not there. Error of `command` without a
// value.
std::optional<std::string> take_value(std::vector<std::string>& words, std::string_view option, std::string_view command);

}  // namespace halftone
