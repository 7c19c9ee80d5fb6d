#include "halftone/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"

namespace halftone {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr int64_t kMaxValues = 4096;

template <class T>
bool parse_whole(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

// YAML 1.2's core schema, without octal and hexadecimal numbers and NaN.
Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const bool number = digits.find_first_not_of("0123456789+-.eE") == std::string_view::npos && digits.find_first_of("0123456789") < 3;
  if (int64_t i = 0; number && parse_whole(digits, i)) return i;
  if (double d = 0; number && parse_whole(digits, d)) return d;
  if (text == ".inf" || text == "+.inf") return HUGE_VAL;
  if (text == "-.inf") return -HUGE_VAL;
  return text;
}

// Whether the quoted scalar that opens at `at` has an end.
bool closes(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      if (quote == '"' || i + 1 == text.size() || text[i + 1] != quote) return true;
      ++i;  // '' is a quote of the string
    } else if (quote == '"' && text[i] == '\\') {
      ++i;
    }
  }
  return false;
}

// Builds values from the parser's events. yaml-cpp's nodes do not distinguish 1 from "1", keep duplicate keys and resolve aliases.
class Builder : public YAML::EventHandler {
 public:
  // `text` has no byte order mark: the parser's marks are positions in it.
  Builder(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, "", anchor, nullptr); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "an alias (*name)"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    if (!levels_.empty() && levels_.back().value.is_object() && !levels_.back().has_key) {
      take_key(mark, tag, anchor, value);
    } else {
      add(mark, tag, anchor, tag == "!" ? Json(value) : plain_scalar(value));
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Json::array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Json::object());
  }
  void OnMapEnd() override { close(); }

  YamlDocument document;

 private:
  struct Level {
    Json value;
    std::string path;
    std::string key;
    bool has_key = false;
  };

  static int64_t line_of(const YAML::Mark& mark) { return int64_t{mark.line} + 1; }

  [[noreturn]] void refuse(const YAML::Mark& mark, std::string_view what) const {
    fail("{}:{}: {} is not allowed in a recipe file; write the value out", name_, line_of(mark), what);
  }

  void check_node(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) refuse(mark, "an anchor (&name)");
    const auto at = static_cast<size_t>(mark.pos);
    const char first = at < text_.size() ? text_[at] : '\0';
    // "!" marks a quoted or multi-line scalar, or a tag spelled that way.
    if (!tag.empty() && tag != "?" && (tag != "!" || first == '!')) refuse(mark, "a tag (!type)");
    // yaml-cpp accepts the end of a text that ends in a line break or blank as the missing quote.
    const bool quoted = tag == "!" && (first == '"' || first == '\'');
    check(!quoted || closes(text_, at), "{}:{}: not YAML: expected a closing {}, found the end of the file; close the quote opened here",
          name_, line_of(mark), first);
    check(++values_ <= kMaxValues, "{}:{}: expected at most {} values", name_, line_of(mark), kMaxValues);
  }

  void take_key(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) {
    check_node(mark, tag, anchor);
    Level& level = levels_.back();
    check(!level.value.contains(value), "{}:{}: the key {} is given twice in one map; later entries do not replace earlier ones", name_,
          line_of(mark), shown(value));
    level.key = value;
    level.has_key = true;
    document.line_of[level.path + "/" + value] = line_of(mark);
  }

  // Place of the next value in the innermost level.
  std::string next_path() const {
    if (levels_.empty()) return "";
    const Level& level = levels_.back();
    return level.path + "/" + (level.value.is_array() ? std::to_string(level.value.size()) : level.key);
  }

  void store(Json value) {
    if (levels_.empty()) {
      document.root = std::move(value);
    } else if (Level& level = levels_.back(); level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      level.value[level.key] = std::move(value);
      level.has_key = false;
    }
  }

  void add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Json value) {
    check_node(mark, tag, anchor);
    check(levels_.empty() || !levels_.back().value.is_object() || levels_.back().has_key, "{}:{}: expected a name as key", name_,
          line_of(mark));
    document.line_of.emplace(next_path(), line_of(mark));
    store(std::move(value));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Json value) {
    check_node(mark, tag, anchor);
    check(levels_.size() < kMaxDepth, "{}:{}: expected at most {} levels of nesting", name_, line_of(mark), kMaxDepth);
    check(levels_.empty() || !levels_.back().value.is_object() || levels_.back().has_key, "{}:{}: expected a name as key, found a {}",
          name_, line_of(mark), value.is_array() ? "list" : "map");
    std::string path = next_path();
    document.line_of.emplace(path, line_of(mark));
    levels_.push_back({std::move(value), std::move(path), "", false});
  }

  void close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    store(std::move(value));
  }

  std::string_view text_, name_;
  std::vector<Level> levels_;
  int64_t values_ = 0;
};

void check_text(std::string_view text, std::string_view name) {
  check(text.size() <= kMaxYamlBytes, "{}: expected a recipe file of at most {} bytes, found {}", name, kMaxYamlBytes, text.size());
  check(text.find('\0') == std::string_view::npos, "{}: expected a text file, found NUL bytes", name);
  check(text.find('\x04') == std::string_view::npos, "{}: expected a text file, found a byte 0x04, which would end the text", name);
  check(is_valid_utf8(text), "{}: expected UTF-8 text", name);
}

// Characters that an editor does not show are the likeliest cause of an error.
std::string_view unseen_cause(std::string_view text) {
  if (text.find('\r') != std::string_view::npos && text.find('\n') == std::string_view::npos)
    return "; its lines end in carriage returns alone: save it with line feeds";
  for (size_t begin = 0; begin < text.size(); begin = std::min(text.find('\n', begin), text.size() - 1) + 1) {
    const size_t first = text.find_first_not_of(' ', begin);
    if (first != std::string_view::npos && text[first] == '\t') return "; a line begins with a tab: YAML is indented with blanks";
  }
  return "";
}

}  // namespace

YamlDocument read_yaml(std::string_view text, std::string_view name) {
  check_text(text, name);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Builder builder(text, name);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    check(parser.HandleNextDocument(builder), "{}: expected training_stage with its modifiers, found an empty file", name);
    Builder rest(text, name);
    check(!parser.HandleNextDocument(rest), "{}: expected one document, found another one after it", name);
  } catch (const YAML::Exception& error) {
    fail("{}:{}: not YAML: {}{}", name, int64_t{error.mark.line} + 1, error.msg, unseen_cause(text));
  }
  return std::move(builder.document);
}

}  // namespace halftone
