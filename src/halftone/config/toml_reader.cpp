#include "halftone/config/toml_reader.h"

#include <stdexcept>

namespace {
// What toml++ asserts is a property of the text in places ("[:a]"), so it must be an error in every kind of build; with
// NDEBUG the library would take it for granted instead.
[[noreturn]] void not_toml() { throw std::invalid_argument("this is not TOML"); }
}  // namespace
#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? void(0) : not_toml())
// Bounds the recursion of the parser and of the destructors; no field nests deeper than this.
#define TOML_MAX_NESTED_VALUES 32
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr size_t kMaxBytes = 4 << 20;
constexpr int kMaxDots = 100;

// Each dot of a key nests a table, and tables are destroyed recursively: refuse lines that only a broken file has.
void check_shape(std::string_view text, std::string_view name) {
  check(text.size() <= kMaxBytes, "{}: expected a configuration of at most {} bytes, found {}", name, kMaxBytes, text.size());
  check(text.find('\0') == std::string_view::npos, "{}: expected a text file, found NUL bytes", name);
  int64_t line = 1;
  int dots = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      dots = 0;
      quote = 0;
    } else if (quote != 0) {
      if (c == '\\' && quote == '"') {
        if (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      } else if (c == quote) {
        quote = 0;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '.') {
      check(++dots <= kMaxDots, "{}:{}: expected at most {} dots outside quotes in one line", name, line, kMaxDots);
    }
  }
}

// The line of a table header that begins with no key ("[:a]"), for which the parser gives no place; 0 if there is none.
int64_t line_of_bad_header(std::string_view text) {
  int64_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view s = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t bracket = s.find_first_not_of(" \t");
    if (bracket == std::string_view::npos || s[bracket] != '[') continue;
    const size_t key = s.find_first_not_of("[ \t", bracket);
    if (key != std::string_view::npos && !std::isalnum(static_cast<unsigned char>(s[key])) && !std::strchr("_-\"'", s[key])) return line;
  }
  return 0;
}

auto position(const toml::key& key) { return std::pair(key.source().begin.line, key.source().begin.column); }

std::vector<std::pair<const toml::key*, const toml::node*>> in_file_order(const toml::table& table) {
  std::vector<std::pair<const toml::key*, const toml::node*>> out;
  for (auto&& [key, node] : table) out.emplace_back(&key, &node);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return position(*a.first) < position(*b.first); });
  return out;
}

Json to_json_value(const toml::node& node, std::string_view name) {
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_boolean()) return v->get();
  if (const toml::array* array = node.as_array()) {
    Json out = Json::array();
    for (const toml::node& item : *array) out.push_back(to_json_value(item, name));
    return out;
  }
  if (const toml::table* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, item] : in_file_order(*table)) out[std::string(key->str())] = to_json_value(*item, name);
    return out;
  }
  fail("{}:{}: expected a string, number, boolean, list or table, found a date or time", name, node.source().begin.line);
}

void collect(const toml::table& table, const std::string& prefix, std::string_view name,
             const std::function<bool(std::string_view)>& is_section, std::vector<TomlItem>& out) {
  for (const auto& [key, node] : in_file_order(table)) {
    const std::string dotted = prefix + std::string(key->str());
    if (const toml::table* inner = node->as_table(); inner && is_section(dotted)) {
      collect(*inner, dotted + ".", name, is_section, out);
    } else {
      out.push_back({dotted, to_json_value(*node, name), key->source().begin.line});
    }
  }
}

}  // namespace

std::vector<TomlItem> read_toml(std::string_view text, std::string_view name, const std::function<bool(std::string_view)>& is_section) {
  check_shape(text, name);
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail("{}:{}: {}", name, error.source().begin.line, error.description());
  } catch (const std::invalid_argument& error) {
    const int64_t line = line_of_bad_header(text);
    fail("{}{}: {}; expected [section] with a name of letters, digits, _ or -", name, line == 0 ? "" : fmt::format(":{}", line),
         error.what());
  }
  std::vector<TomlItem> items;
  collect(root, "", name, is_section, items);
  std::stable_sort(items.begin(), items.end(), [](const TomlItem& a, const TomlItem& b) { return a.line < b.line; });
  return items;
}

}  // namespace halftone
