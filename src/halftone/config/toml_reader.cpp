#include "halftone/config/toml_reader.h"

#include <stdexcept>

namespace {
// Some assertions of toml++ depend on the text ("[:a]"): they must be errors in every build, also with NDEBUG.
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

// Scans a text for what toml++ does not survive: every dot of a key nests a table, and tables are destroyed recursively; its search for
// blanks assumes that no character outside ASCII occurs outside quotes and comments.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  void check_all() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark is allowed
    int dots = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        dots = 0;
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      } else if (c == '"' || c == '\'') {
        skip_string(c);
      } else if (c == '.') {
        check(++dots <= kMaxDots, "{}:{}: expected at most {} dots outside quotes in one line", name_, line_, kMaxDots);
      } else {
        check(static_cast<unsigned char>(c) < 0x80, "{}:{}: expected text outside ASCII only in quotes and comments", name_, line_);
      }
    }
  }

 private:
  // From the opening quote to the last closing one.
  void skip_string(char quote) {
    const int64_t first_line = line_;
    const bool multi_line = text_.substr(at_).starts_with(std::string(3, quote));
    const std::string close(multi_line ? 3 : 1, quote);
    for (at_ += close.size(); at_ < text_.size(); ++at_) {
      if (text_.substr(at_).starts_with(close)) {
        at_ += close.size() - 1;
        for (int i = 0; multi_line && i < 2 && at_ + 1 < text_.size() && text_[at_ + 1] == quote; ++i) ++at_;  // quotes before the end
        return;
      }
      if (text_[at_] == '\\' && quote == '"' && at_ + 1 < text_.size()) ++at_;
      if (text_[at_] != '\n') continue;
      if (!multi_line) break;
      ++line_;
    }
    fail("{}:{}: the string that begins here is not closed", name_, first_line);
  }

  std::string_view text_, name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

void check_shape(std::string_view text, std::string_view name) {
  check(text.size() <= kMaxBytes, "{}: expected a configuration of at most {} bytes, found {}", name, kMaxBytes, text.size());
  check(text.find('\0') == std::string_view::npos, "{}: expected a text file, found NUL bytes", name);
  Scanner(text, name).check_all();
}

// The line of a table header without a key ("[:a]"), whose place the parser does not report; 0 if there is none.
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
