#include "halftone/chat/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "halftone/chat/jinja/text.h"

namespace halftone::jinja {
namespace {

uint32_t depth_of(const Value& v) {
  if (const auto* list = as_list(v)) return list->depth;
  if (const auto* dict = as_dict(v)) return dict->depth;
  const auto* object = std::get_if<ObjectPtr>(&v);
  return object ? (*object)->depth : 0;
}

void check_depth(uint32_t depth, Budget& budget) {
  if (depth > budget.limits().nesting) fault("lists or dicts are nested deeper than {} levels", budget.limits().nesting);
}

// Number comparison without the rounding of int64 to double.
int compare_numbers(const Value& a, const Value& b) {
  const auto* m = integer_of(a);
  const auto* n = integer_of(b);
  if (m && n) return *m < *n ? -1 : *m > *n;
  double x = 0, y = 0;
  number_of(a, x), number_of(b, y);
  if (std::isnan(x) || std::isnan(y)) return 2;
  const auto big = [](const int64_t* i, double d) { return i ? static_cast<long double>(*i) : static_cast<long double>(d); };
  const long double p = big(m, x), q = big(n, y);  // 64 bits of mantissa
  return p < q ? -1 : p > q;
}

bool is_number(const Value& v) {
  double ignored;
  return number_of(v, ignored);
}

// Appends to a text whose size is checked.
struct Writer {
  std::string out;
  Budget& budget;
  void add(std::string_view text) {
    budget.spend(1 + text.size() / 128);
    if (text.size() > budget.limits().bytes - std::min(out.size(), budget.limits().bytes)) budget.text(budget.limits().bytes + 1);
    out += text;
  }

  void repr(const Value& v) {
    if (const auto* text = as_text(v)) {
      std::string quoted;
      append_repr(quoted, *text);
      return add(quoted);
    }
    if (const auto* dict = as_dict(v)) {
      add("{");
      for (bool first = true; const auto& [key, value] : dict->items) {
        if (!std::exchange(first, false)) add(", ");
        repr(key), add(": "), repr(value);
      }
      return add("}");
    }
    if (const auto* list = as_list(v)) {
      const bool tuple = list->kind == Sequence::tuple;
      if (list->kind == Sequence::range || list->kind == Sequence::generator) fault("a {} cannot be printed; use |list", type_name(v));
      if (!tuple && list->kind != Sequence::list) add("dict_" + type_name(v).substr(5) + "(");
      add(tuple ? "(" : "[");
      for (bool first = true; const Value& item : list->items) {
        if (!std::exchange(first, false)) add(", ");
        repr(item);
      }
      add(tuple ? list->items.size() == 1 ? ",)" : ")" : "]");
      if (!tuple && list->kind != Sequence::list) add(")");
      return;
    }
    if (as_undefined(v)) return add("Undefined");
    add(str(v, budget));
  }

  void json_key(const Value& key, const JsonStyle& style) {
    std::string quoted;
    if (const auto* text = as_text(key)) {
      append_json_string(quoted, *text, style.ascii);
    } else if (std::holds_alternative<None>(key) || is_number(key)) {
      quoted = '"' + to_json(key, style, budget) + '"';
    } else {
      fault("tojson: keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    add(quoted);
  }

  void json(const Value& v, const JsonStyle& style, size_t level) {
    const auto line = [&](size_t at) {
      if (!style.indented) return;
      add("\n");
      for (size_t i = 0; i < at; ++i) add(style.indent);
    };
    if (const auto* text = as_text(v)) {
      std::string quoted;
      budget.text(text->size());
      append_json_string(quoted, *text, style.ascii);
      return add(quoted);
    }
    if (const auto* dict = as_dict(v)) {
      if (dict->items.empty()) return add("{}");
      auto items = dict->items;
      budget.spend(items.size());
      if (style.sort_keys) {
        std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) { return less(a.first, b.first, budget); });
      }
      add("{");
      for (bool first = true; const auto& [key, value] : items) {
        if (!std::exchange(first, false)) add(style.item_separator);
        line(level + 1), json_key(key, style), add(style.key_separator), json(value, style, level + 1);
      }
      return line(level), add("}");
    }
    const auto* list = as_list(v);
    if (list && list->kind <= Sequence::tuple) {
      if (list->items.empty()) return add("[]");
      add("[");
      for (bool first = true; const Value& item : list->items) {
        if (!std::exchange(first, false)) add(style.item_separator);
        line(level + 1), json(item, style, level + 1);
      }
      return line(level), add("]");
    }
    if (const auto* number = std::get_if<double>(&v); number && !std::isfinite(*number)) {
      return add(std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity");
    }
    if (std::holds_alternative<None>(v)) return add("null");
    if (const auto* truth = std::get_if<bool>(&v)) return add(*truth ? "true" : "false");
    if (is_number(v)) return add(str(v, budget));
    fault("tojson: an object of type {} has no form in JSON", type_name(v));
  }
};

}  // namespace

Value text_value(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

Value undefined(std::string reason) { return Undefined{std::make_shared<const std::string>(std::move(reason))}; }

Value make_list(Values items, Budget& budget, Sequence kind) {
  budget.spend(items.size());
  uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  check_depth(depth + 1, budget);
  return std::make_shared<const List>(List{std::move(items), kind, depth + 1});
}

Value make_dict(std::vector<std::pair<Value, Value>> items, Budget& budget) {
  Dict dict;
  for (auto& [key, value] : items) {
    if (as_list(key) || as_dict(key)) fault("unhashable type: '{}'", type_name(key));
    dict.depth = std::max(dict.depth, depth_of(value) + 1);
    check_depth(dict.depth, budget);
    if (const Value* known = find(dict, key, budget)) {
      const_cast<Value&>(*known) = std::move(value);
    } else {
      dict.items.emplace_back(std::move(key), std::move(value));
    }
  }
  return std::make_shared<const Dict>(std::move(dict));
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget, uint32_t depth) {
  check_depth(depth, budget);
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) fault("the integer {} is beyond 64 bits with sign", json.get<uint64_t>());
      [[fallthrough]];
    case nlohmann::json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return text_value(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      List list;
      list.items.reserve(json.size());
      for (const auto& item : json) {
        list.items.push_back(from_json(item, budget, depth + 1));
        list.depth = std::max(list.depth, depth_of(list.items.back()) + 1);
      }
      return std::make_shared<const List>(std::move(list));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      dict.items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict.items.emplace_back(text_value(key), from_json(item, budget, depth + 1));
        dict.depth = std::max(dict.depth, depth_of(dict.items.back().second) + 1);
      }
      return std::make_shared<const Dict>(std::move(dict));
    }
    default:
      return None{};
  }
}

std::string type_name(const Value& v) {
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool", "int", "float", "str"};
  if (v.index() < std::size(kNames)) return kNames[v.index()];
  static constexpr const char* kSequences[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
  if (const auto* list = as_list(v)) return kSequences[static_cast<size_t>(list->kind)];
  return as_dict(v) ? "dict" : std::get<ObjectPtr>(v)->type();
}

const int64_t* integer_of(const Value& v) {
  static constexpr int64_t kBool[] = {0, 1};
  if (const auto* b = std::get_if<bool>(&v)) return &kBool[*b];
  return std::get_if<int64_t>(&v);
}

bool number_of(const Value& v, double& number) {
  if (const auto* i = integer_of(v)) return number = static_cast<double>(*i), true;
  const auto* d = std::get_if<double>(&v);
  if (d) number = *d;
  return d != nullptr;
}

void undefined_fault(const Value& v) {
  const auto& reason = std::get<Undefined>(v).reason;
  throw Fault(reason ? *reason : "an argument is missing");
}

bool truth(const Value& v) {
  if (as_undefined(v) || std::holds_alternative<None>(v)) return false;
  if (double number; number_of(v, number)) return number != 0;
  if (const auto* text = as_text(v)) return !text->empty();
  if (const auto* list = as_list(v)) return list->kind == Sequence::generator || !list->items.empty();
  if (const auto* dict = as_dict(v)) return !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
  if (a.index() != b.index()) return false;
  if (const auto* x = as_text(a)) return budget.spend(x->size() / 1024), *x == *as_text(b);
  if (const auto* object = std::get_if<ObjectPtr>(&a)) return *object == std::get<ObjectPtr>(b);
  if (const auto* x = as_list(a)) {
    const auto* y = as_list(b);
    if (x == y) return true;
    return x->kind == y->kind && x->kind != Sequence::generator && x->items.size() == y->items.size() &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(),
                      [&](const Value& p, const Value& q) { return equal(p, q, budget); });
  }
  if (const auto* x = as_dict(a)) {
    const auto* y = as_dict(b);
    return x == y || (x->items.size() == y->items.size() && std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
                        const Value* other = find(*y, item.first, budget);
                        return other && equal(item.second, *other, budget);
                      }));
  }
  return true;
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (as_undefined(a)) undefined_fault(a);
  if (as_undefined(b)) undefined_fault(b);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == -1;
  const auto* x = as_text(a);
  const auto* y = as_text(b);
  if (x && y) return budget.spend(x->size() / 1024), *x < *y;  // UTF-8 sorts as code points do
  const auto* p = as_list(a);
  const auto* q = as_list(b);
  if (!p || !q || p->kind != q->kind || p->kind > Sequence::tuple) {
    fault("'<' is not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
  }
  for (size_t i = 0; i < p->items.size() && i < q->items.size(); ++i) {
    if (!equal(p->items[i], q->items[i], budget)) return less(p->items[i], q->items[i], budget);
  }
  return p->items.size() < q->items.size();
}

const Value* find(const Dict& dict, const Value& key, Budget& budget) {
  if (const auto* text = as_text(key)) return find(dict, *text, budget);
  const auto found = std::find_if(dict.items.begin(), dict.items.end(), [&](const auto& item) { return equal(item.first, key, budget); });
  return found == dict.items.end() ? nullptr : &found->second;
}

const Value* find(const Dict& dict, std::string_view key, Budget& budget) {
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i % 16 == 15) budget.spend(1);
    const auto* text = as_text(dict.items[i].first);
    if (text && *text == key) return &dict.items[i].second;
  }
  return nullptr;
}

std::string str(const Value& v, Budget& budget) {
  if (as_undefined(v)) return {};
  if (const auto* text = as_text(v)) return *text;
  if (std::holds_alternative<None>(v)) return "None";
  if (const auto* b = std::get_if<bool>(&v)) return *b ? "True" : "False";
  if (const auto* i = std::get_if<int64_t>(&v)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&v)) return float_repr(*d);
  if (std::holds_alternative<ObjectPtr>(v)) fault("a {} cannot be printed", type_name(v));
  Writer writer{{}, budget};
  writer.repr(v);
  return std::move(writer.out);
}

std::string to_json(const Value& v, const JsonStyle& style, Budget& budget) {
  Writer writer{{}, budget};
  writer.json(v, style, 0);
  return std::move(writer.out);
}

}  // namespace halftone::jinja
