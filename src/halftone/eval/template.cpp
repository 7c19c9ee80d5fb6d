#include "halftone/eval/template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/eval/python_text.h"

namespace halftone::eval {
namespace {

using Function = std::string (*)(const std::string&);

std::string before(const std::string& text) {
  const size_t at = text.find('_');
  check(at != std::string::npos, "expected a _ in '{}'", text);
  return text.substr(0, at);
}

constexpr std::array<std::pair<std::string_view, Function>, 7> kFunctions = {{
    {"strip", [](const std::string& s) { return std::string(python::strip(s, python::Side::both)); }},
    {"capitalize", [](const std::string& s) { return python::capitalize(s); }},
    {"first_words", [](const std::string& s) { return s.rfind(' ') == std::string::npos ? std::string() : s.substr(0, s.rfind(' ')); }},
    {"last_word", [](const std::string& s) { return s.rfind(' ') == std::string::npos ? s : s.substr(s.rfind(' ') + 1); }},
    {"before_blank", before},
    {"after_blank", [](const std::string& s) { return std::string(python::strip(s.substr(before(s).size() + 1), python::Side::both)); }},
    {"spaces", [](const std::string& s) { return python::replaced(s, "_", " "); }},
}};

Function function_of(std::string_view name, const std::string& what) {
  for (const auto& [known, function] : kFunctions) {
    if (known == name) return function;
  }
  std::vector<std::string_view> names;
  for (const auto& [known, function] : kFunctions) names.push_back(known);
  fail("{}: expected a function of {}, found |{}", what, fmt::join(names, ", "), name);
}

std::vector<std::string> path_of(std::string_view name, const std::string& what) {
  std::vector<std::string> path;
  for (size_t at = 0; at < name.size();) {
    if (name[at] == '[') {
      const size_t end = name.find(']', at);
      const std::string_view index = end == std::string_view::npos ? "" : name.substr(at + 1, end - at - 1);
      check(!index.empty() && index.size() < 6 && index.find_first_not_of("0123456789") == std::string_view::npos,
            "{}: expected an index such as [0] in '{}'", what, name);
      path.push_back("[" + std::string(index) + "]"), at = end + 1;
    } else {
      at += name[at] == '.' && at > 0;
      const size_t end = std::min(name.find_first_of(".[", at), name.size());
      check(end > at, "{}: expected the name of a field, found '{}'", what, name);
      path.emplace_back(name.substr(at, end - at)), at = end;
    }
  }
  check(!path.empty() && path[0][0] != '[', "{}: expected the name of a field between braces, found '{}'; {{{{ is a brace", what, name);
  return path;
}

const Json& field_at(const Row& row, const std::string& name, const std::vector<std::string>& path) {
  const Json* at = &row.fields;
  for (const std::string& step : path) {
    if (step[0] == '[') {
      const size_t index = std::stoul(step.substr(1));
      check(at->is_array() && index < at->size(), "{}: {}: expected a list of more than {} elements, found {}", row.place, name, index,
            at->is_array() ? fmt::format("{}", at->size()) : at->type_name());
      at = &(*at)[index];
      continue;
    }
    const auto found = at->is_object() ? at->find(step) : at->end();
    if (!at->is_object() || found == at->end() || found->is_null()) {
      std::vector<std::string> names;
      if (at->is_object())
        for (const auto& [key, value] : at->items()) names.push_back(key);
      fail("{}: expected the field '{}', found {}", row.place, name,
           names.empty() ? std::string("no fields there") : fmt::format("{}", fmt::join(names, ", ")));
    }
    at = &*found;
  }
  return *at;
}

std::string text_of(const Json& value, const std::string& name, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  check(value.is_number() || value.is_boolean(), "{}: {}: expected text or a number, found a value of type {}", place, name,
        value.type_name());
  return value.dump();
}

std::string clean_hellaswag(const std::string& given) {
  static const python::Regex kBrackets(R"(\[.*?\])");
  const std::string text = python::replaced(std::string(python::strip(given, python::Side::both)), " [title]", ". ");
  return python::replaced(kBrackets.substituted(text, ""), "  ", " ");
}

std::string clean_wikitext(const std::string& given) {
  struct Step {
    const char *from, *to;
  };
  static const std::array<Step, 9> kFirst = {{{"s '", "s'"},
                                              {" @-@ ", "-"},
                                              {" @,@ ", ","},
                                              {" @.@ ", "."},
                                              {" : ", ": "},
                                              {" ; ", "; "},
                                              {" . ", ". "},
                                              {" ! ", "! "},
                                              {" ? ", "? "}}};
  static const std::array<std::pair<python::Regex, const char*>, 5> kPairs = {{{python::Regex(R"(\(\s*([^\)]*?)\s*\))"), R"((\1))"},
                                                                               {python::Regex(R"(\[\s*([^\]]*?)\s*\])"), R"([\1])"},
                                                                               {python::Regex(R"({\s*([^}]*?)\s*})"), R"({\1})"},
                                                                               {python::Regex("\"\\s*([^\"]*?)\\s*\""), R"("\1")"},
                                                                               {python::Regex(R"('\s*([^']*?)\s*')"), R"('\1')"}}};
  static const std::array<Step, 8> kLast = {{{"= = = =", "===="},
                                             {"= = =", "==="},
                                             {"= =", "=="},
                                             {" \xC2\xB0 ", "\xC2\xB0"},
                                             {" \n", "\n"},
                                             {"\n ", "\n"},
                                             {" N ", " 1 "},
                                             {" 's", "'s"}}};
  static const python::Regex kQuoted("/' [0-9]/");
  std::string text = given;
  for (const Step& s : kFirst) {
    text = python::replaced(std::move(text), s.from, s.to);
    if (s.from == kFirst[0].from) text = kQuoted.substituted(text, "/'[0-9]/");
  }
  text = python::replaced(std::move(text), " , ", ", ");
  for (const auto& [regex, by] : kPairs) text = regex.substituted(text, by);
  for (const Step& s : kLast) text = python::replaced(std::move(text), s.from, s.to);
  return text;
}

}  // namespace

Clean clean_of(const std::string& name, const std::string& what) {
  if (name == "hellaswag") return clean_hellaswag;
  if (name == "wikitext") return clean_wikitext;
  fail("{}: expected hellaswag or wikitext, found '{}'", what, name);
}

Template::Template(std::string_view text, const std::string& what) {
  const auto add_text = [&](std::string_view more) {
    if (parts_.empty() || !parts_.back().path.empty()) parts_.emplace_back();
    parts_.back().text += more;
  };
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      const size_t end = std::min(text.find_first_of("{}", at), text.size());
      add_text(text.substr(at, end - at)), at = end;
    } else if (at + 1 < text.size() && text[at + 1] == c) {
      add_text(text.substr(at, 1)), at += 2;
    } else {
      const size_t end = c == '{' ? text.find('}', at) : std::string_view::npos;
      check(end != std::string_view::npos, "{}: a {} without its partner in '{}'; {{{{ and }}}} are braces", what, c, text);
      std::string_view inside = text.substr(at + 1, end - at - 1);
      Part part;
      const size_t bar = std::min(inside.find('|'), inside.size());
      part.name = inside.substr(0, bar), part.path = path_of(part.name, what);
      for (inside.remove_prefix(bar); !inside.empty();) {
        inside.remove_prefix(1);
        const size_t next = std::min(inside.find('|'), inside.size());
        part.functions.emplace_back(inside.substr(0, next));
        function_of(part.functions.back(), what);
        inside.remove_prefix(next);
      }
      parts_.push_back(std::move(part)), at = end + 1;
    }
  }
}

std::string Template::render_field(const Part& part, const Json& value, const Row& row) {
  std::string text = text_of(value, part.name, row.place);
  for (const std::string& name : part.functions) {
    try {
      text = function_of(name, "")(text);
    } catch (const Error& error) {
      fail("{}: {}: {}", row.place, part.name, error.what());
    }
  }
  return text;
}

std::string Template::render(const Row& row) const {
  std::string out;
  for (const Part& p : parts_) out += p.path.empty() ? p.text : render_field(p, field_at(row, p.name, p.path), row);
  return out;
}

std::vector<std::string> Template::render_list(const Row& row) const {
  const Part& part = parts_.at(0);
  const Json& list = field_at(row, part.name, part.path);
  check(list.is_array(), "{}: {}: expected a list, found a value of type {}", row.place, part.name, list.type_name());
  std::vector<std::string> all;
  for (const Json& value : list) all.push_back(render_field(part, value, row));
  return all;
}

}  // namespace halftone::eval
