#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "halftone/chat/jinja/interpreter.h"
#include "halftone/chat/jinja/text.h"

// Methods of Python's str, list, tuple and dict, and the functions that transformers gives to a template.
namespace halftone::jinja {
namespace {

const std::string& receiver(const Value& self) { return *as_text(self); }

const std::string& text_of(const Value& v) {
  if (as_undefined(v)) undefined_fault(v);
  if (!as_text(v)) fault("expected a string, found {}", type_name(v));
  return *as_text(v);
}
std::optional<std::string_view> optional_text(const Args& args, size_t i) {
  if (!args.at(i) || std::holds_alternative<None>(*args.at(i))) return {};
  return text_of(*args.at(i));
}
int64_t integer_at(const Args& args, size_t i, int64_t absent) {
  const Value* v = args.at(i);
  if (!v || std::holds_alternative<None>(*v)) return absent;
  if (!integer_of(*v)) fault("expected an integer, found {}", type_name(*v));
  return *integer_of(*v);
}

template <Side side>
Value stripped(Interpreter& in, const Value& self, const Args& args) {
  return in.text(std::string(strip(receiver(self), side, optional_text(args, 0))));
}
template <bool from_right>
Value split_method(Interpreter& in, const Value& self, const Args& args) {
  in.budget.spend(receiver(self).size() / 32);
  Values parts;
  for (const std::string_view part : split(receiver(self), optional_text(args, 0), integer_at(args, 1, -1), from_right)) {
    parts.push_back(in.text(std::string(part)));
  }
  return in.list(std::move(parts));
}
template <Case to>
Value cased_method(Interpreter& in, const Value& self, const Args&) {
  return in.text(change_case(receiver(self), to));
}

// startswith and endswith: of a string, or any of a tuple's.
template <bool at_end>
Value affix(Interpreter& in, const Value& self, const Args& args) {
  const auto* tuple = as_list(*args.at(0));
  const Values affixes = tuple && tuple->kind == Sequence::tuple ? in.iterate(*args.at(0)) : Values{*args.at(0)};
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& v) {
    return at_end ? receiver(self).ends_with(text_of(v)) : receiver(self).starts_with(text_of(v));
  });
}
template <bool at_end>
Value without_affix(Interpreter& in, const Value& self, const Args& args) {
  std::string_view text = receiver(self);
  const std::string& part = text_of(*args.at(0));
  if (!at_end && text.starts_with(part)) text.remove_prefix(part.size());
  if (at_end && text.ends_with(part)) text.remove_suffix(part.size());
  return in.text(std::string(text));
}

template <bool from_right, bool must>
Value found_at(Interpreter& in, const Value& self, const Args& args) {
  const std::string& text = receiver(self);
  in.budget.spend(text.size() / 128);
  const int64_t n = static_cast<int64_t>(code_points(text));
  const auto place = [&](size_t i, int64_t absent) {
    int64_t at = integer_at(args, i, absent);
    at = at < 0 ? std::max<int64_t>(at + n, 0) : at;
    return at > n ? std::string::npos : code_point_offset(text, static_cast<size_t>(at));
  };
  const size_t begin = place(1, 0), end = std::min(place(2, n), text.size());
  size_t at = std::string::npos;
  if (begin <= end) {
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    at = from_right ? part.rfind(text_of(*args.at(0))) : part.find(text_of(*args.at(0)));
  }
  if (at != std::string::npos) return static_cast<int64_t>(code_points(std::string_view(text).substr(0, begin + at)));
  if (must) fault("substring not found");
  return int64_t{-1};
}

Value count(Interpreter& in, const Value& self, const Args& args) {
  const std::string& text = receiver(self);
  const std::string& part = text_of(*args.at(0));
  in.budget.spend(text.size() / 128);
  if (part.empty()) return static_cast<int64_t>(code_points(text)) + 1;
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

Value replace(Interpreter& in, const Value& self, const Args& args) {
  const std::string& text = receiver(self);
  const std::string& from = text_of(*args.at(0));
  const std::string& to = text_of(*args.at(1));
  int64_t left = integer_at(args, 2, -1);
  std::string out;
  const auto add = [&](std::string_view part) {
    if (out.size() + part.size() > in.budget.limits().bytes) in.budget.text(in.budget.limits().bytes + 1);
    out += part;
  };
  size_t at = 0;
  while (left != 0 && at <= text.size()) {
    const size_t next = from.empty() ? at : text.find(from, at);
    if (next == std::string::npos) break;
    in.budget.spend(1);
    add(std::string_view(text).substr(at, next - at)), add(to);
    at = next + from.size();
    if (from.empty()) {  // between all characters
      const size_t bytes = at < text.size() ? code_point_bytes(text, at) : 1;
      if (at < text.size()) add(std::string_view(text).substr(at, bytes));
      at += bytes;
    }
    --left;
  }
  if (at < text.size()) add(std::string_view(text).substr(at));
  return in.text(std::move(out));
}

template <bool from_right>
Value partition(Interpreter& in, const Value& self, const Args& args) {
  const std::string& text = receiver(self);
  const std::string& by = text_of(*args.at(0));
  if (by.empty()) fault("empty separator");
  const size_t at = from_right ? text.rfind(by) : text.find(by);
  Values parts = {text_value(from_right ? "" : text), text_value(""), text_value(from_right ? text : "")};
  if (at != std::string::npos) parts = {in.text(text.substr(0, at)), text_value(by), in.text(text.substr(at + by.size()))};
  return in.list(std::move(parts), Sequence::tuple);
}

// str.format with {}, {0}, {name} and {{ }}.
Value format(Interpreter& in, const Value& self, const Args& args) {
  const std::string& text = receiver(self);
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c, ++i;
      continue;
    }
    if (c == '}') fault("single '}}' in a format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string::npos) fault("expected '}}' in a format string");
    const std::string field = text.substr(i + 1, end - i - 1);
    const bool number = field.find_first_not_of("0123456789") == std::string::npos && field.size() < 9;
    if (field.find_first_of(":!.[{") != std::string::npos) fault("format() supports {{}}, {{0}} and {{name}} only, found {{{}}}", field);
    const size_t index = !number ? 0 : field.empty() ? next++ : std::strtoul(field.c_str(), nullptr, 10);
    const auto named = std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == field; });
    if (number ? index >= args.positional.size() : named == args.named.end()) fault("format() has no argument '{}'", field);
    out += in.string(number ? args.positional[index] : named->second);
    in.budget.text(out.size());
    i = end;
  }
  return text_value(std::move(out));
}

template <bool (*holds)(char)>
Value every(Interpreter&, const Value& self, const Args&) {
  const std::string& text = receiver(self);
  for (const char c : text) {
    if (c & 0x80) fault("character classes of text beyond ASCII are not supported");
  }
  return !text.empty() && std::all_of(text.begin(), text.end(), holds);
}
template <Case to>
Value has_case(Interpreter&, const Value& self, const Args&) {
  const std::string& text = receiver(self);
  return change_case(text, to) == text && change_case(text, Case::lower) != change_case(text, Case::upper);
}
bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool letter_or_digit(char c) { return digit(c) || letter(c); }

constexpr Native kTextMethods[] = {
    {"capitalize", "", cased_method<Case::capitalize>},
    {"count", "sub", count},
    {"endswith", "suffix", affix<true>},
    {"find", "sub,start?,end?", found_at<false, false>},
    {"format", "*", format},
    {"index", "sub,start?,end?", found_at<false, true>},
    {"isalnum", "", every<letter_or_digit>},
    {"isalpha", "", every<letter>},
    {"isdigit", "", every<digit>},
    {"islower", "", has_case<Case::lower>},
    {"isspace", "",
     [](Interpreter&, const Value& self, const Args&) -> Value {
       return !receiver(self).empty() && strip(receiver(self), Side::left).empty();
     }},
    {"isupper", "", has_case<Case::upper>},
    {"join", "iterable",
     [](Interpreter& in, const Value& self, const Args& args) {
       const Value items = in.list(in.iterate(*args.at(0)));
       for (const Value& v : as_list(items)->items) text_of(v);
       return in.call_native(*find_filter("join"), items, {{self}, {}});
     }},
    {"lower", "", cased_method<Case::lower>},
    {"lstrip", "chars?", stripped<Side::left>},
    {"partition", "sep", partition<false>},
    {"removeprefix", "prefix", without_affix<false>},
    {"removesuffix", "suffix", without_affix<true>},
    {"replace", "old,new,count?", replace},
    {"rfind", "sub,start?,end?", found_at<true, false>},
    {"rindex", "sub,start?,end?", found_at<true, true>},
    {"rpartition", "sep", partition<true>},
    {"rsplit", "sep?,maxsplit?", split_method<true>},
    {"rstrip", "chars?", stripped<Side::right>},
    {"split", "sep?,maxsplit?", split_method<false>},
    {"splitlines", "",
     [](Interpreter& in, const Value& self, const Args&) {
       Values lines;
       for (const std::string_view line : split_lines(receiver(self))) lines.push_back(in.text(std::string(line)));
       return in.list(std::move(lines));
     }},
    {"startswith", "prefix", affix<false>},
    {"strip", "chars?", stripped<Side::both>},
    {"title", "", cased_method<Case::title>},
    {"upper", "", cased_method<Case::upper>},
};

constexpr Native kListMethods[] = {
    {"count", "value",
     [](Interpreter& in, const Value& self, const Args& args) -> Value {
       const auto& items = as_list(self)->items;
       return static_cast<int64_t>(
           std::count_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, *args.at(0), in.budget); }));
     }},
    {"index", "value",
     [](Interpreter& in, const Value& self, const Args& args) -> Value {
       const auto& items = as_list(self)->items;
       const auto found = std::find_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, *args.at(0), in.budget); });
       if (found == items.end()) fault("the value is not in the list");
       return static_cast<int64_t>(found - items.begin());
     }},
};

template <Sequence kind>
Value view(Interpreter& in, const Value& self, const Args&) {
  Values out;
  for (const auto& [key, value] : as_dict(self)->items) {
    out.push_back(kind == Sequence::keys ? key : kind == Sequence::values ? value : in.list({key, value}, Sequence::tuple));
  }
  return in.list(std::move(out), kind);
}

constexpr Native kDictMethods[] = {
    {"copy", "", [](Interpreter&, const Value& self, const Args&) { return self; }},
    {"get", "key,default?",
     [](Interpreter& in, const Value& self, const Args& args) -> Value {
       if (as_list(*args.at(0)) || as_dict(*args.at(0))) fault("unhashable type: '{}'", type_name(*args.at(0)));
       if (const Value* found = find(*as_dict(self), *args.at(0), in.budget)) return *found;
       return args.at(1) ? *args.at(1) : Value(None{});
     }},
    {"items", "", view<Sequence::items>},
    {"keys", "", view<Sequence::keys>},
    {"values", "", view<Sequence::values>},
};

Value range(Interpreter& in, const Value&, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) fault("range() takes one to three integers");
  for (const Value& v : args.positional) {
    if (as_undefined(v)) undefined_fault(v);
    if (!integer_of(v)) fault("range() takes integers, not {}", type_name(v));
  }
  const bool one = args.positional.size() == 1;
  const int64_t start = one ? 0 : *integer_of(args.positional[0]), stop = *integer_of(args.positional[one ? 0 : 1]);
  const int64_t step = args.positional.size() == 3 ? *integer_of(args.positional[2]) : 1;
  if (step == 0) fault("the step of range() cannot be zero");
  Values out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (out.size() == in.budget.limits().range) fault("range() of more than {} items", in.budget.limits().range);
    out.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.list(std::move(out), Sequence::range);
}

// The local time; SOURCE_DATE_EPOCH (reproducible-builds.org) fixes it, in UTC.
Value strftime_now(Interpreter& in, const Value&, const Args& args) {
  const char* fixed = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t now = fixed ? static_cast<std::time_t>(std::strtoll(fixed, nullptr, 10)) : std::time(nullptr);
  std::tm parts{};
  if (!(fixed ? gmtime_r(&now, &parts) : localtime_r(&now, &parts))) fault("strftime_now(): SOURCE_DATE_EPOCH is out of range");
  const std::string& format = text_of(*args.at(0));
  if (format.size() > 256) fault("strftime_now(): a format of {} bytes, at most 256 are supported", format.size());
  char buffer[4096];
  const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  if (n == 0 && !format.empty()) fault("strftime_now(): the date is empty or longer than {} bytes", sizeof buffer);
  return in.text(std::string(buffer, n));
}

constexpr Native kGlobals[] = {
    {"dict", "*",
     [](Interpreter& in, const Value&, const Args& args) {
       if (args.positional.size() > 1) fault("dict() takes one positional argument");
       std::vector<std::pair<Value, Value>> items;
       if (args.positional.size() == 1) {
         if (const auto* dict = as_dict(args.positional[0])) {
           items = dict->items;
         } else {
           for (const Value& pair : in.iterate(args.positional[0])) {
             const Values both = in.iterate(pair);
             if (both.size() != 2) fault("dict() takes pairs");
             items.emplace_back(both[0], both[1]);
           }
         }
       }
       for (const auto& [name, value] : args.named) items.emplace_back(text_value(std::string(name)), value);
       in.budget.spend(items.size());
       return make_dict(std::move(items), in.budget);
     }},
    {"namespace", "*", [](Interpreter& in, const Value&, const Args& args) { return in.new_namespace(args); }},
    {"raise_exception", "message",
     [](Interpreter& in, const Value&, const Args& args) -> Value {
       fault("the template raises: {}", in.string(*args.at(0)).substr(0, 1000));
     }},
    {"range", "*", range},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

const Native* find_global(std::string_view name) { return find_native(kGlobals, name); }
const Native* find_method(const Value& self, std::string_view name) {
  if (as_text(self)) return find_native(kTextMethods, name);
  if (as_dict(self)) return find_native(kDictMethods, name);
  const auto* list = as_list(self);
  return list && list->kind <= Sequence::range ? find_native(kListMethods, name) : nullptr;
}

}  // namespace halftone::jinja
