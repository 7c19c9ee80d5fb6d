#include <algorithm>
#include <charconv>
#include <cmath>

#include "halftone/chat/jinja/interpreter.h"
#include "halftone/chat/jinja/operators.h"
#include "halftone/chat/jinja/text.h"

// Jinja's filters and tests, https://jinja.palletsprojects.com/en/stable/templates/ ; tojson is transformers'.
namespace halftone::jinja {
namespace {

std::string text_argument(Interpreter& in, const Args& args, size_t i, std::string absent) {
  const Value* v = args.at(i);
  return v ? in.string(*v) : std::move(absent);
}
bool flag(const Args& args, size_t i) { return args.at(i) && truth(*args.at(i)); }
bool absent(const Args& args, size_t i) { return !args.at(i) || std::holds_alternative<None>(*args.at(i)); }

int64_t integer_argument(const Args& args, size_t i, int64_t absent) {
  if (!args.at(i)) return absent;
  const int64_t* n = integer_of(*args.at(i));
  if (!n) fault("expected an integer, found {}", type_name(*args.at(i)));
  return *n;
}

// The attribute "a.b.0" of a value; postprocessed strings are lowered.
Value path(Interpreter& in, Value v, const Value* attribute, bool ignore_case = false, const Value* fallback = nullptr) {
  if (attribute && integer_of(*attribute)) {
    v = in.item(v, *attribute);
  } else if (attribute && !std::holds_alternative<None>(*attribute)) {
    const std::string dotted = in.string(*attribute);
    for (const std::string_view part : split(dotted, ".", -1, false)) {
      const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
      v = in.item(v, digits ? Value(static_cast<int64_t>(std::stol(std::string(part)))) : text_value(std::string(part)));
      if (fallback && as_undefined(v)) v = *fallback;
    }
  }
  const auto* text = as_text(v);
  return text && ignore_case ? text_value(change_case(*text, Case::lower)) : v;
}

Values sorted(Interpreter& in, Values values, const Args& args, size_t attribute, bool ignore_case, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& v : values) keyed.emplace_back(path(in, v, args.at(attribute), ignore_case), v);
  const auto before = [&](const auto& a, const auto& b) { return less(a.first, b.first, in.budget); };
  if (reverse) std::reverse(keyed.begin(), keyed.end());  // sorted(reverse=True) keeps the order of equal items
  std::stable_sort(keyed.begin(), keyed.end(), before);
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  for (size_t i = 0; i < values.size(); ++i) values[i] = keyed[i].second;
  return values;
}

Value extreme(Interpreter& in, const Value& self, const Args& args, bool greatest) {
  const Values values = in.iterate(self);
  if (values.empty()) return undefined("no aggregated item, the sequence was empty");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& v : values) {
    Value key = path(in, v, args.at(1), !flag(args, 0));
    if (best && !(greatest ? less(best_key, key, in.budget) : less(key, best_key, in.budget))) continue;
    best = &v, best_key = std::move(key);
  }
  return *best;
}

Value length(Interpreter&, const Value& self, const Args&) {
  if (as_undefined(self)) return int64_t{0};
  if (const auto* text = as_text(self)) return static_cast<int64_t>(code_points(*text));
  if (const auto* dict = as_dict(self)) return static_cast<int64_t>(dict->items.size());
  if (const auto* list = as_list(self); list && list->kind != Sequence::generator) return static_cast<int64_t>(list->items.size());
  if (const auto* loop = as_object<LoopState>(self)) return static_cast<int64_t>(loop->items.size());
  fault("object of type '{}' has no length", type_name(self));
}

Value default_value(Interpreter&, const Value& self, const Args& args) {
  if (as_undefined(self) || (flag(args, 1) && !truth(self))) return args.at(0) ? *args.at(0) : text_value("");
  return self;
}

Value escape(Interpreter& in, const Value& self, const Args&) {
  std::string out;
  for (const char c : in.string(self)) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : c == '"' ? "&#34;" : std::string(1, c);
  }
  return in.text(std::move(out));
}

// int(text, base) or float(text) of Python; false if the text is no such number.
bool parse_integer(std::string_view text, int64_t base, int64_t& out) {
  text = strip(text, Side::both);
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  const char* begin = digits.data() + digits.starts_with('+');
  const char* end = digits.data() + digits.size();
  if (base < 2 || base > 36) return false;
  const auto [stop, error] = std::from_chars(begin, end, out, static_cast<int>(base));
  if (error == std::errc::result_out_of_range) fault("the integer {} is beyond 64 bits", digits.substr(0, 40));
  return error == std::errc() && stop == end;
}
bool parse_float(std::string_view text, double& out) {
  text = strip(text, Side::both);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && stop == text.data() + text.size();
}

Value to_integer(Interpreter&, const Value& self, const Args& args) {
  if (as_undefined(self)) undefined_fault(self);
  const Value fallback = args.at(0) ? *args.at(0) : Value(int64_t{0});
  if (const int64_t* n = integer_of(self)) return *n;
  double number = 0;
  if (const auto* text = as_text(self)) {
    int64_t n = 0;
    if (parse_integer(*text, integer_argument(args, 1, 10), n)) return n;
    if (!parse_float(*text, number)) return fallback;
  } else if (!number_of(self, number)) {
    return fallback;
  }
  if (!std::isfinite(number)) return fallback;
  if (std::abs(number) >= 9.2e18) fault("the integer of {} is beyond 64 bits", number);
  return static_cast<int64_t>(number);
}

Value to_float(Interpreter&, const Value& self, const Args& args) {
  if (as_undefined(self)) undefined_fault(self);
  double number = 0;
  const auto* text = as_text(self);
  if (text ? parse_float(*text, number) : number_of(self, number)) return number;
  return args.at(0) ? *args.at(0) : Value(0.0);
}

Value round_number(Interpreter& in, const Value& self, const Args& args) {
  double number = 0;
  if (!number_of(self, number)) fault("round needs a number, not {}", type_name(self));
  const int64_t digits = integer_argument(args, 0, 0);
  const std::string method = text_argument(in, args, 1, "common");
  if (digits < 0 || digits > 300) fault("round: a precision of 0 to 300 is supported, found {}", digits);
  if (method == "common") {
    if (integer_of(self)) return *integer_of(self);
    return std::isfinite(number) ? std::stod(fmt::format("{:.{}f}", number, digits)) : number;
  }
  if (method != "ceil" && method != "floor") fault("round: the method is common, ceil or floor, found {}", method.substr(0, 40));
  const double scale = std::pow(10.0, static_cast<double>(digits));
  return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
}

Value join(Interpreter& in, const Value& self, const Args& args) {
  const std::string separator = text_argument(in, args, 0, "");
  std::string out;
  for (bool first = true; const Value& v : in.iterate(self)) {
    const std::string part = in.string(path(in, v, args.at(1)));
    in.budget.text(out.size() + separator.size() + part.size() > in.budget.limits().bytes ? in.budget.limits().bytes + 1 : part.size());
    if (!std::exchange(first, false)) out += separator;
    out += part;
  }
  return text_value(std::move(out));
}

Value indent(Interpreter& in, const Value& self, const Args& args) {
  const auto* text = as_text(self);
  if (!text) fault("indent needs a string, not {}", type_name(self));
  const Value* width = args.at(0);
  std::string by;
  if (width && as_text(*width)) {
    by = *as_text(*width);
  } else {
    const int64_t n = std::max<int64_t>(integer_argument(args, 0, 4), 0);
    in.budget.text(static_cast<size_t>(n));
    by.assign(static_cast<size_t>(n), ' ');
  }
  const std::string whole = *text + "\n";
  std::string out;
  for (size_t i = 0; const std::string_view line : split_lines(whole)) {
    in.budget.spend(1);
    in.budget.text(std::min(out.size(), in.budget.limits().bytes) + by.size() + line.size() > in.budget.limits().bytes
                       ? in.budget.limits().bytes + 1
                       : by.size() + line.size());
    if (i != 0) out += '\n';
    if (i == 0 ? flag(args, 1) : flag(args, 2) || !line.empty()) out += by;
    out += line;
    ++i;
  }
  return text_value(std::move(out));
}

Value to_json_filter(Interpreter& in, const Value& self, const Args& args) {
  JsonStyle style;
  style.ascii = flag(args, 0), style.sort_keys = flag(args, 3);
  if (!absent(args, 1)) {
    style.indented = true, style.item_separator = ",";
    const auto* text = as_text(*args.at(1));
    const int64_t width = text ? 0 : std::clamp<int64_t>(integer_argument(args, 1, 0), 0, 1000);
    style.indent = text ? *text : std::string(static_cast<size_t>(width), ' ');
  }
  if (!absent(args, 2)) {
    const Values pair = in.iterate(*args.at(2));
    if (pair.size() != 2 || !as_text(pair[0]) || !as_text(pair[1])) fault("tojson: separators are two strings");
    style.item_separator = *as_text(pair[0]), style.key_separator = *as_text(pair[1]);
  }
  return text_value(to_json(self, style, in.budget));
}

// map('filter', ...) or map(attribute=...)
Value map(Interpreter& in, const Value& self, const Args& args) {
  Values out;
  if (!truth(self)) return in.list({}, Sequence::generator);
  const auto named = [&](std::string_view name) {
    const auto found = std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == name; });
    return found == args.named.end() ? nullptr : &found->second;
  };
  if (const Value* attribute = named("attribute"); attribute && args.positional.empty()) {
    if (args.named.size() > 1 + (named("default") != nullptr)) fault("map: unexpected argument");
    for (const Value& v : in.iterate(self)) out.push_back(path(in, v, attribute, false, named("default")));
  } else {
    const auto* name = args.positional.empty() ? nullptr : as_text(args.positional[0]);
    const Native* filter = name ? find_filter(*name) : nullptr;
    if (!filter) fault("map needs the name of a filter, or attribute=");
    for (const Value& v : in.iterate(self)) {
      out.push_back(in.call_native(*filter, v, {{args.positional.begin() + 1, args.positional.end()}, args.named}));
    }
  }
  return in.list(std::move(out), Sequence::generator);
}

Value select(Interpreter& in, const Value& self, const Args& args, bool attribute, bool keep) {
  if (!truth(self)) return in.list({}, Sequence::generator);
  if (attribute && args.positional.empty()) fault("selectattr and rejectattr need an attribute");
  const size_t at = attribute ? 1 : 0;
  const Native* test = nullptr;
  if (args.positional.size() > at) {
    const auto* name = as_text(args.positional[at]);
    test = name ? find_test(*name) : nullptr;
    if (!test) fault("no test named '{}'", name ? *name : type_name(args.positional[at]));
  }
  Values out;
  for (const Value& v : in.iterate(self)) {
    const Value tested = attribute ? path(in, v, &args.positional[0]) : v;
    const bool holds =
        test ? truth(in.call_native(*test, tested,
                                    {{args.positional.begin() + static_cast<ptrdiff_t>(at) + 1, args.positional.end()}, args.named}))
             : truth(tested);
    if (holds == keep) out.push_back(v);
  }
  return in.list(std::move(out), Sequence::generator);
}

Value dict_items(Interpreter& in, const Value& self, const Args&) {
  if (as_undefined(self)) return in.list({}, Sequence::generator);
  const auto* dict = as_dict(self);
  if (!dict) fault("can only get item pairs from a mapping, not {}", type_name(self));
  Values out;
  for (const auto& [key, value] : dict->items) out.push_back(in.list({key, value}, Sequence::tuple));
  return in.list(std::move(out), Sequence::generator);
}

Value dictsort(Interpreter& in, const Value& self, const Args& args) {
  const auto* dict = as_dict(self);
  if (!dict) fault("dictsort needs a dict, not {}", type_name(self));
  const std::string by = text_argument(in, args, 1, "key");
  if (by != "key" && by != "value") fault("dictsort sorts by key or value");
  Args key;
  key.positional = {Value(int64_t{by == "value"})};
  const Value items = dict_items(in, self, args);
  return in.list(sorted(in, in.iterate(items), key, 0, !flag(args, 0), flag(args, 2)));
}

Value reverse(Interpreter& in, const Value& self, const Args&) {
  Values items = in.iterate(self);
  std::reverse(items.begin(), items.end());
  if (!as_text(self)) return in.list(std::move(items), Sequence::generator);
  std::string out;
  for (const Value& v : items) out += *as_text(v);
  return in.text(std::move(out));
}

Value unique(Interpreter& in, const Value& self, const Args& args) {
  Values keys, out;
  for (const Value& v : in.iterate(self)) {
    Value key = path(in, v, args.at(1), !flag(args, 0));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key, in.budget); })) continue;
    keys.push_back(std::move(key));
    out.push_back(v);
  }
  return in.list(std::move(out), Sequence::generator);
}

template <Case to>
Value cased(Interpreter& in, const Value& self, const Args&) {
  return in.text(change_case(in.string(self), to));
}

constexpr Native kFilters[] = {
    {"abs", "",
     [](Interpreter& in, const Value& self, const Args&) -> Value {
       return less(self, Value(int64_t{0}), in.budget) ? apply_binary("-", int64_t{0}, self, in) : self;
     }},
    {"capitalize", "", cased<Case::capitalize>},
    {"count", "", length},
    {"d", "default_value?,boolean?", default_value},
    {"default", "default_value?,boolean?", default_value},
    {"dictsort", "case_sensitive?,by?,reverse?", dictsort},
    {"e", "", escape},
    {"escape", "", escape},
    {"first", "",
     [](Interpreter& in, const Value& self, const Args&) {
       const auto* list = as_list(self);
       if (list && list->kind == Sequence::generator && list->consumed < list->items.size()) return list->items[list->consumed++];
       const Values items = in.iterate(self);
       return items.empty() ? undefined("no first item, the sequence was empty") : items.front();
     }},
    {"float", "default?", to_float},
    {"format", "*",
     [](Interpreter& in, const Value& self, const Args& args) {
       if (!args.named.empty()) fault("the filter format takes no named arguments here");
       return percent_format(in.string(self), in.list(args.positional, Sequence::tuple), in);
     }},
    {"indent", "width?,first?,blank?", indent},
    {"int", "default?,base?", to_integer},
    {"items", "", dict_items},
    {"join", "d?,attribute?", join},
    {"last", "",
     [](Interpreter& in, const Value& self, const Args&) {
       if (const auto* list = as_list(self); list && list->kind == Sequence::generator) fault("'generator' object is not reversible");
       const Values items = in.iterate(self);
       return items.empty() ? undefined("no last item, the sequence was empty") : items.back();
     }},
    {"length", "", length},
    {"list", "", [](Interpreter& in, const Value& self, const Args&) { return in.list(in.iterate(self)); }},
    {"lower", "", cased<Case::lower>},
    {"map", "*", map},
    {"max", "case_sensitive?,attribute?",
     [](Interpreter& in, const Value& self, const Args& args) { return extreme(in, self, args, true); }},
    {"min", "case_sensitive?,attribute?",
     [](Interpreter& in, const Value& self, const Args& args) { return extreme(in, self, args, false); }},
    {"reject", "*", [](Interpreter& in, const Value& self, const Args& args) { return select(in, self, args, false, false); }},
    {"rejectattr", "*", [](Interpreter& in, const Value& self, const Args& args) { return select(in, self, args, true, false); }},
    {"replace", "old,new,count?",
     [](Interpreter& in, const Value& self, const Args& args) {
       Args bound{{*args.at(0), *args.at(1)}, {}};
       for (Value& v : bound.positional) v = in.text(in.string(v));
       if (!absent(args, 2)) bound.positional.push_back(*args.at(2));
       const Value text = in.text(in.string(self));
       return in.call_native(*find_method(text, "replace"), text, std::move(bound));
     }},
    {"reverse", "", reverse},
    {"round", "precision?,method?", round_number},
    {"safe", "", [](Interpreter& in, const Value& self, const Args&) { return in.text(in.string(self)); }},
    {"select", "*", [](Interpreter& in, const Value& self, const Args& args) { return select(in, self, args, false, true); }},
    {"selectattr", "*", [](Interpreter& in, const Value& self, const Args& args) { return select(in, self, args, true, true); }},
    {"sort", "reverse?,case_sensitive?,attribute?",
     [](Interpreter& in, const Value& self, const Args& args) {
       return in.list(sorted(in, in.iterate(self), args, 2, !flag(args, 1), flag(args, 0)));
     }},
    {"string", "", [](Interpreter& in, const Value& self, const Args&) { return in.text(in.string(self)); }},
    {"sum", "attribute?,start?",
     [](Interpreter& in, const Value& self, const Args& args) {
       Value total = args.at(1) ? *args.at(1) : Value(int64_t{0});
       for (const Value& v : in.iterate(self)) total = apply_binary("+", total, path(in, v, args.at(0)), in);
       return total;
     }},
    {"title", "", cased<Case::title_filter>},
    {"tojson", "ensure_ascii?,indent?,separators?,sort_keys?", to_json_filter},
    {"trim", "chars?",
     [](Interpreter& in, const Value& self, const Args& args) {
       const std::string text = in.string(self);
       if (absent(args, 0)) return in.text(std::string(strip(text, Side::both)));
       return in.text(std::string(strip(text, Side::both, text_argument(in, args, 0, ""))));
     }},
    {"unique", "case_sensitive?,attribute?", unique},
    {"upper", "", cased<Case::upper>},
};

template <class T>
Value is(Interpreter&, const Value& self, const Args&) {
  return std::holds_alternative<T>(self);
}
template <bool value>
Value is_exactly(Interpreter&, const Value& self, const Args&) {
  const auto* b = std::get_if<bool>(&self);
  return b && *b == value;
}
Value is_equal(Interpreter& in, const Value& self, const Args& args) { return equal(self, *args.at(0), in.budget); }
Value is_unequal(Interpreter& in, const Value& self, const Args& args) { return !equal(self, *args.at(0), in.budget); }
template <char first, bool or_equal>
Value compares(Interpreter& in, const Value& self, const Args& args) {
  return ordered(first == '<' ? or_equal ? "<=" : "<" : or_equal ? ">=" : ">", self, *args.at(0), in.budget);
}
Value divides(Interpreter& in, const Value& self, const Value& by, int64_t rest) {
  return equal(apply_binary("%", self, by, in), Value(rest), in.budget);
}

constexpr Native kTests[] = {
    {"!=", "other", is_unequal},
    {"<", "other", compares<'<', false>},
    {"<=", "other", compares<'<', true>},
    {"==", "other", is_equal},
    {">", "other", compares<'>', false>},
    {">=", "other", compares<'>', true>},
    {"boolean", "", is<bool>},
    {"callable", "",
     [](Interpreter&, const Value& self, const Args&) -> Value { return as_object<Function>(self) || as_object<Macro>(self); }},
    {"defined", "", [](Interpreter&, const Value& self, const Args&) -> Value { return !as_undefined(self); }},
    {"divisibleby", "num", [](Interpreter& in, const Value& self, const Args& args) { return divides(in, self, *args.at(0), 0); }},
    {"eq", "other", is_equal},
    {"equalto", "other", is_equal},
    {"even", "", [](Interpreter& in, const Value& self, const Args&) { return divides(in, self, Value(int64_t{2}), 0); }},
    {"false", "", is_exactly<false>},
    {"float", "", is<double>},
    {"ge", "other", compares<'>', true>},
    {"greaterthan", "other", compares<'>', false>},
    {"gt", "other", compares<'>', false>},
    {"in", "seq", [](Interpreter& in, const Value& self, const Args& args) -> Value { return in.contains(*args.at(0), self); }},
    {"integer", "", is<int64_t>},
    {"iterable", "",
     [](Interpreter&, const Value& self, const Args&) -> Value {
       return as_undefined(self) || as_text(self) || as_list(self) || as_dict(self) || as_object<LoopState>(self);
     }},
    {"le", "other", compares<'<', true>},
    {"lessthan", "other", compares<'<', false>},
    {"lt", "other", compares<'<', false>},
    {"mapping", "", [](Interpreter&, const Value& self, const Args&) -> Value { return as_dict(self) != nullptr; }},
    {"ne", "other", is_unequal},
    {"none", "", is<None>},
    {"number", "",
     [](Interpreter&, const Value& self, const Args&) -> Value {
       double ignored;
       return number_of(self, ignored);
     }},
    {"odd", "", [](Interpreter& in, const Value& self, const Args&) { return divides(in, self, Value(int64_t{2}), 1); }},
    {"sequence", "",
     [](Interpreter&, const Value& self, const Args&) -> Value {
       const auto* list = as_list(self);
       return as_undefined(self) || as_text(self) || as_dict(self) || (list && list->kind <= Sequence::range);
     }},
    {"string", "", is<Text>},
    {"true", "", is_exactly<true>},
    {"undefined", "", is<Undefined>},
};

}  // namespace

const Native* find_filter(std::string_view name) { return find_native(kFilters, name); }
const Native* find_test(std::string_view name) { return find_native(kTests, name); }

void Args::bind(std::string_view parameters, std::string_view function) {
  if (parameters == "*") return;
  const auto names = parameters.empty() ? std::vector<std::string_view>() : split(parameters, ",", -1, false);
  if (positional.size() > names.size()) fault("{}() takes at most {} arguments, found {}", function, names.size(), positional.size());
  const size_t passed = positional.size();
  positional.resize(names.size());
  for (auto& [name, value] : named) {
    const auto found = std::find_if(names.begin(), names.end(), [&](std::string_view n) { return strip(n, Side::right, "?") == name; });
    if (found == names.end()) fault("{}() has no argument '{}'", function, name);
    const auto i = static_cast<size_t>(found - names.begin());
    if (i < passed) fault("{}() got two values for the argument '{}'", function, name);
    positional[i] = std::move(value);
  }
  named.clear();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!at(i) && !names[i].ends_with('?')) fault("{}() needs the argument '{}'", function, names[i]);
  }
}

}  // namespace halftone::jinja
