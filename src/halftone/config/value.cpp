#include "halftone/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "halftone/config/names.h"

namespace halftone {
namespace {

std::string expected(std::string_view what, const Json& found) { return fmt::format("expected {}, found {}", what, shown(found)); }

bool is_none_word(std::string_view s) { return s == "None" || s == "none" || s == "null"; }

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string check_choice(std::string& word, const FieldInfo& info) {
  if (info.choices.empty()) return "";
  for (const std::string_view choice : info.choices) {
    if (choice == word) return "";
    if (info.any_case && same_ignoring_case(choice, word)) {
      word = choice;
      return "";
    }
  }
  return fmt::format("expected one of {}; found {}", join(info.choices), shown(word));
}

std::string check_min(double x, const FieldInfo& info) {
  return info.min && !(x >= *info.min) ? fmt::format("expected at least {}, found {}", *info.min, x) : "";
}

std::string set(bool& out, const Json& v, const FieldInfo&) {
  if (!v.is_boolean()) return expected("true or false", v);
  out = v.get<bool>();
  return "";
}

std::string set(int64_t& out, const Json& v, const FieldInfo& info) {
  if (!v.is_number_integer() || (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}))
    return expected("an integer", v);
  out = v.get<int64_t>();
  return check_min(static_cast<double>(out), info);
}

std::string set(double& out, const Json& v, const FieldInfo& info) {
  if (!v.is_number() || std::isnan(v.get<double>())) return expected("a number", v);
  out = v.get<double>();
  return check_min(out, info);
}

std::string set(std::string& out, const Json& v, const FieldInfo& info) {
  if (info.lenient && v.is_number_integer()) {
    out = v.dump();
  } else if (v.is_string()) {
    out = v.get<std::string>();
  } else {
    return expected("a string", v);
  }
  if (out.find('\0') != std::string::npos) return "expected text without NUL bytes";
  return check_choice(out, info);
}

std::string set(StringList& out, const Json& v, const FieldInfo& info) {
  out.clear();
  if (info.lenient && v.is_string()) return set(out.emplace_back(), v, {.choices = info.choices});
  if (!v.is_array()) return expected("a list of strings", v);
  for (const Json& item : v) {
    if (std::string problem = set(out.emplace_back(), item, {.choices = info.choices}); !problem.empty()) return problem;
  }
  return "";
}

std::string set(std::vector<StringList>& out, const Json& v, const FieldInfo& info) {
  out.clear();
  if (!v.is_array()) return expected("a list of lists of strings", v);
  for (const Json& item : v) {
    if (std::string problem = set(out.emplace_back(), item, info); !problem.empty()) return problem;
  }
  return "";
}

std::string set(OptionTable& out, const Json& v, const FieldInfo&) {
  out.clear();
  if (!v.is_object()) return expected("a table {name = value}", v);
  for (const auto& [key, item] : v.items()) {
    if (key.empty()) return "expected a name before each value, found an empty one";
    if (item.is_boolean()) {
      out[key] = item.get<bool>();
    } else if (item.is_number_integer()) {
      int64_t i = 0;
      if (std::string problem = set(i, item, {}); !problem.empty()) return key + ": " + problem;
      out[key] = i;
    } else if (item.is_number_float() && !std::isnan(item.get<double>())) {
      out[key] = item.get<double>();
    } else if (item.is_string()) {
      out[key] = item.get<std::string>();
    } else {
      return key + ": " + expected("a number, a string, true or false", item);
    }
  }
  return "";
}

std::string set(NamedTables& out, const Json& v, const FieldInfo&) {
  out.clear();
  if (!v.is_object()) return expected("tables {name = {option = value}}", v);
  for (const auto& [name, table] : v.items()) {
    if (std::string problem = set(out[name], table, {}); !problem.empty()) return name + ": " + problem;
  }
  return "";
}

std::string set(std::vector<ParamGroup>& out, const Json& v, const FieldInfo&) {
  out.clear();
  if (!v.is_array()) return expected("a list of tables {pattern, optimizer_name, optimizer_kwargs}", v);
  for (const Json& item : v) {
    if (!item.is_object()) return expected("a table {pattern, optimizer_name, optimizer_kwargs}", item);
    ParamGroup& group = out.emplace_back();
    for (const auto& [key, value] : item.items()) {
      std::string problem;
      if (key == "pattern") {
        problem = set(group.pattern, value, {});
      } else if (key == "optimizer_name") {
        problem = set(group.optimizer_name, value, {.choices = optim::optimizer_names()});
      } else if (key == "optimizer_kwargs") {
        problem = set(group.optimizer_kwargs, value, {});
      } else {
        problem = "expected pattern, optimizer_name or optimizer_kwargs";
      }
      if (!problem.empty()) return key + ": " + problem;
    }
    if (group.pattern.empty() || group.optimizer_name.empty()) return expected("pattern and optimizer_name in every group", item);
  }
  return "";
}

std::string set(QuantizeScheme& out, const Json& v, const FieldInfo&) {
  out = {};
  if (v.is_string()) return set(out.name, v, {});
  if (!v.is_object()) return expected("a scheme's name or a table {scheme = [targets]}", v);
  if (v.empty()) return "expected a scheme's name or a table {scheme = [targets]}, found an empty table";
  for (const auto& [scheme, targets] : v.items()) {
    auto& row = out.table.emplace_back(scheme, StringList{});
    if (std::string problem = set(row.second, targets, {.lenient = true}); !problem.empty()) return scheme + ": " + problem;
  }
  return "";
}

std::string set(std::vector<QuantizePhase>& out, const Json& v, const FieldInfo&) {
  out.clear();
  if (!v.is_array()) return expected("a list of tables {from, scheme, ...}", v);
  for (const Json& item : v) {
    if (std::string problem = set_phase(out.emplace_back(), item); !problem.empty())
      return fmt::format("entry {}: {}", out.size() - 1, problem);
  }
  return "";
}

template <class T>
std::string set(std::optional<T>& out, const Json& v, const FieldInfo& info) {
  out.reset();
  if (v.is_null()) return "";
  if (v.is_string()) {
    const std::string& word = v.get_ref<const std::string&>();
    const bool is_choice = std::find(info.choices.begin(), info.choices.end(), word) != info.choices.end();
    if (is_none_word(word) && !is_choice) return "";  // "none" may be a value of its own, as in clip_mode
  }
  return set(out.emplace(), v, info);
}

Json get(const auto& x) { return Json(x); }

Json get(const OptionTable& x) {
  Json out = Json::object();
  for (const auto& [key, value] : x) out[key] = std::visit([](const auto& v) { return Json(v); }, value);
  return out;
}

Json get(const NamedTables& x) {
  Json out = Json::object();
  for (const auto& [name, table] : x) out[name] = get(table);
  return out;
}

Json get(const std::vector<ParamGroup>& x) {
  Json out = Json::array();
  for (const ParamGroup& g : x)
    out.push_back({{"pattern", g.pattern}, {"optimizer_name", g.optimizer_name}, {"optimizer_kwargs", get(g.optimizer_kwargs)}});
  return out;
}

Json get(const QuantizeScheme& x) {
  if (x.table.empty()) return x.name;
  Json out = Json::object();
  for (const auto& [scheme, targets] : x.table) out[scheme] = targets;
  return out;
}

Json get(const std::vector<QuantizePhase>& x) {
  Json out = Json::array();
  for (QuantizePhase phase : x) {
    Json& item = out.emplace_back(Json::object());
    const ConfigIndex index = index_phase(phase);
    for (const std::string& name : phase.stated) item[name] = get_value(*index.find_field("quantize." + name));
  }
  return out;
}

template <class T>
Json get(const std::optional<T>& x) {
  return x ? get(*x) : Json(nullptr);
}

// ---- words of the command line --------------------------------------------------------------------------------------

// "1_000" -> "1000"; an underscore counts only between two digits.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (text[i] == '_' && between) continue;
    out += text[i];
  }
  return out;
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  std::string digits = without_underscores(text);
  std::string_view d = digits;
  if (d.starts_with('+') && !d.starts_with("+-")) d.remove_prefix(1);
  const auto [end, error] = std::from_chars(d.data(), d.data() + d.size(), out);
  return !d.empty() && error == std::errc{} && end == d.data() + d.size();
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

std::string parse_json(std::string_view text, std::string_view what, Json& out) {
  // nlohmann parses without recursion but copies recursively; no field nests deeper than this.
  int depth = 0, deepest = 0;
  for (const char c : text) {
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    deepest = std::max(deepest, depth);
  }
  std::vector<std::set<std::string>> keys;  // of the tables that are open
  std::string twice;
  const auto note = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second && twice.empty()) twice = shown(parsed);
    return true;
  };
  out = deepest <= 64 ? Json::parse(text, note, false) : Json(Json::value_t::discarded);
  if (out.is_discarded()) return fmt::format("expected {} as JSON, found {}", what, shown(std::string(text)));
  return twice.empty() ? "" : fmt::format("the key {} is given twice in one table", twice);
}

Json split(std::string_view text) {
  Json out = Json::array();
  if (trimmed(text).empty()) return out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    out.push_back(std::string(trimmed(text.substr(begin, comma - begin))));
    begin = comma + 1;
  }
  return out;
}

// Whether a bracket of the pattern is open at its end.
bool is_cut(std::string_view pattern) {
  std::string open;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (!open.empty() && open.back() == '[') {  // inside, only its end counts
      if (c == ']') open.pop_back();
    } else if (c == '[' || c == '{' || c == '(') {
      open += c;
    } else if (!open.empty() && (c == '}' || c == ')')) {
      open.pop_back();
    }
  }
  return pattern.starts_with("re:") && !open.empty();
}

std::string parse(const bool&, std::string_view t, Json& out) {
  const bool yes = t == "true" || t == "True" || t == "1", no = t == "false" || t == "False" || t == "0";
  if (!yes && !no) return expected("true or false", std::string(t));
  out = yes;
  return "";
}

std::string parse(const int64_t&, std::string_view t, Json& out) {
  int64_t i = 0;
  if (!parse_number(t, i)) return expected("an integer", std::string(t));
  out = i;
  return "";
}

std::string parse(const double&, std::string_view t, Json& out) {
  double d = 0;
  if (!parse_number(t, d)) return expected("a number", std::string(t));
  out = d;
  return "";
}

std::string parse(const std::string&, std::string_view t, Json& out) {
  out = std::string(t);
  return "";
}

std::string parse(const StringList&, std::string_view t, Json& out) {
  if (t.starts_with('[') && t.ends_with(']') && parse_json(t, "a list", out).empty()) return "";
  out = split(t);
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (is_cut(out[i].get_ref<const std::string&>()))
      return fmt::format("{} ends inside a bracket, because a list is split at commas; write a JSON list: '[\"re:x{{1,2}}\", \"re:y\"]'",
                         shown(out[i]));
  }
  return "";
}

std::string parse(const std::vector<StringList>&, std::string_view t, Json& out) {
  if (t.starts_with("[")) return parse_json(t, "a list of lists", out);
  out = Json::array({split(t)});
  return "";
}

std::string parse(const OptionTable&, std::string_view t, Json& out) { return parse_json(t, "a table", out); }
std::string parse(const NamedTables&, std::string_view t, Json& out) { return parse_json(t, "tables by name", out); }
std::string parse(const std::vector<ParamGroup>&, std::string_view t, Json& out) { return parse_json(t, "a list of tables", out); }

std::string parse(const std::vector<QuantizePhase>&, std::string_view t, Json& out) { return parse_json(t, "a list of tables", out); }

std::string parse(const QuantizeScheme&, std::string_view t, Json& out) {
  if (t.starts_with('{')) return parse_json(t, "a table", out);
  out = std::string(t);
  return "";
}

template <class T>
std::string parse(const std::optional<T>&, std::string_view t, Json& out) {
  if (is_none_word(t) && !std::is_same_v<T, std::string>) {  // set() knows which words a string may be
    out = nullptr;
    return "";
  }
  return parse(T{}, t, out);
}

// ---- names of types -------------------------------------------------------------------------------------------------

std::string name_of(const bool&) { return "bool"; }
std::string name_of(const int64_t&) { return "int"; }
std::string name_of(const double&) { return "float"; }
std::string name_of(const std::string&) { return "str"; }
std::string name_of(const StringList&) { return "list[str]"; }
std::string name_of(const std::vector<StringList>&) { return "list[list[str]]"; }
std::string name_of(const OptionTable&) { return "table"; }
std::string name_of(const NamedTables&) { return "tables by name"; }
std::string name_of(const std::vector<ParamGroup>&) { return "list of tables"; }
std::string name_of(const std::vector<QuantizePhase>&) { return "list of tables"; }
std::string name_of(const QuantizeScheme&) { return "str or table"; }
template <class T>
std::string name_of(const std::optional<T>&) {
  return name_of(T{}) + "?";
}

template <class... Ts>
bool holds(const FieldEntry& f) {
  return (std::holds_alternative<Ts*>(f.value) || ...);
}

}  // namespace

std::string set_value(const FieldEntry& field, const Json& value) {
  return std::visit(
      [&](auto* out) {
        auto fresh = *out;  // a refused value leaves the field as it was
        std::string problem = set(fresh, value, field.info);
        if (problem.empty()) *out = std::move(fresh);
        return problem;
      },
      field.value);
}

std::string set_phase(QuantizePhase& phase, const Json& table) {
  if (!table.is_object()) return expected("a table {from, scheme, ...}", table);
  const ConfigIndex index = index_phase(phase);
  std::vector<std::string_view> known;
  for (const FieldEntry& f : index.fields) known.push_back(leaf_of(f.name));
  for (const auto& [key, value] : table.items()) {
    const FieldEntry* field = index.find_field("quantize." + key);
    if (field == nullptr) return fmt::format("unknown option {} of a phase{}", shown(key), nearest_word(key, known));
    const bool fraction = key == "from" && value.is_number_float();
    if (std::string problem = set_value(*field, fraction ? Json(to_toml_text(value)) : value); !problem.empty()) {
      if (value.is_string() && problem.starts_with("expected one of"))
        problem += nearest_word(value.get<std::string>(), field->info.choices);
      return fmt::format("{}: {}", key, problem);
    }
    phase.stated.push_back(key);
  }
  return "";
}

Json get_value(const FieldEntry& field) {
  return std::visit([](const auto* x) { return get(*x); }, field.value);
}

const Json& default_value(std::string_view name) {
  static const std::map<std::string, Json, std::less<>> defaults = [] {
    JobConfig config;
    std::map<std::string, Json, std::less<>> out;
    for (const FieldEntry& f : index_config(config).fields) out.emplace(f.name, get_value(f));
    return out;
  }();
  return defaults.find(name)->second;
}

std::string parse_text(const FieldEntry& field, std::string_view text, Json& out) {
  return std::visit([&](const auto* x) { return parse(*x, text, out); }, field.value);
}

Json parse_scalar(std::string_view text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  if (int64_t i = 0; parse_number(text, i)) return i;
  if (double d = 0; parse_number(text, d) && !std::isnan(d)) return d;
  return std::string(text);
}

bool is_bool(const FieldEntry& f) { return holds<bool, std::optional<bool>>(f); }
bool is_list_of_lists(const FieldEntry& f) { return holds<std::vector<StringList>, std::optional<std::vector<StringList>>>(f); }
bool is_table(const FieldEntry& f) { return holds<OptionTable, NamedTables, QuantizeScheme>(f); }
bool is_option_table(const FieldEntry& f) { return holds<OptionTable>(f); }

std::string type_name(const FieldEntry& field) {
  return std::visit([](const auto* x) { return name_of(*x); }, field.value);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

// A key of a table, bare where TOML allows it.
static std::string toml_key(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(),
                                                [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '_' || c == '-'); });
  return bare ? std::string(key) : toml_string(key);
}

std::string to_toml_text(const Json& v) {
  if (v.is_null()) return "\"None\"";
  if (v.is_string()) return toml_string(v.get_ref<const std::string&>());
  if (v.is_number_float()) {
    std::string text = fmt::format("{}", v.get<double>());
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (!v.is_structured()) return v.dump();
  std::string out;
  for (const auto& [key, item] : v.items()) {
    if (!out.empty()) out += ", ";
    out += v.is_object() ? toml_key(key) + " = " + to_toml_text(item) : to_toml_text(item);
  }
  return v.is_object() ? "{" + out + "}" : "[" + out + "]";
}

std::string shown(const Json& value) {
  std::string text = value.is_null() ? "nothing" : to_toml_text(value);
  if (text.size() > 80) {
    size_t cut = 76;  // back to the start of a UTF-8 sequence
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + " ...";
  }
  return text;
}

std::string join(const std::vector<std::string_view>& words, std::string_view separator) {
  std::string out;
  for (const std::string_view w : words) {
    if (!out.empty()) out += separator;
    out += w;
  }
  return out;
}

}  // namespace halftone
