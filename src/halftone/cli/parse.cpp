#include "halftone/cli/parse.h"

#include <algorithm>
#include <map>

#include "halftone/base/error.h"

namespace halftone {
namespace {

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

// Every long option, with those of subcommands, by its name with dashes.
void collect_names(const CLI::App& app, std::map<std::string, std::string>& names) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.emplace(with_dashes(name), name);
  for (const CLI::App* sub : app.get_subcommands({})) collect_names(*sub, names);
}

}  // namespace

bool is_option(std::string_view word, std::string_view option) { return with_dashes(word) == with_dashes(option); }

std::optional<std::string> take_value(std::vector<std::string>& words, std::string_view option, std::string_view command) {
  std::optional<std::string> value;
  for (auto word = words.begin(); word != words.end();) {
    const size_t equals = word->find('=');
    if (!is_option(word->substr(0, equals), option)) {
      ++word;
      continue;
    }
    const bool joined = equals != std::string::npos;
    check(joined || word + 1 != words.end(), "{}: {}: expected a value after it, found none; see halftone {} --help", command, option,
          command);
    value = joined ? word->substr(equals + 1) : word[1];
    word = words.erase(word, word + (joined ? 1 : 2));
  }
  return value;
}

bool parse(CLI::App& app, Arguments args) {
  std::map<std::string, std::string> names;
  collect_names(app, names);
  std::vector<std::string> words(args.begin(), args.end());
  for (std::string& word : words) {
    if (word == "--") break;  // the rest are no options
    if (!word.starts_with("--")) continue;
    const size_t end = std::min(word.find('='), word.size());
    if (const auto known = names.find(with_dashes(word.substr(2, end - 2))); known != names.end())
      word = "--" + known->second + word.substr(end);
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& e) {  // --help
    app.exit(e);
    return false;
  } catch (const CLI::ParseError& e) {
    constexpr std::string_view kProgram = "halftone ";  // the prefix of every error
    fail("{}: {} (see {} --help)", app.get_name().substr(kProgram.size()), e.what(), app.get_name());
  }
  return true;
}

}  // namespace halftone
