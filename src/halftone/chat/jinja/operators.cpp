#include "halftone/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "halftone/chat/jinja/text.h"

namespace halftone::jinja {
namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  fault("unsupported operand types for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

Value integer_result(bool overflow, const int64_t& value) {  // by reference: the overflow is evaluated first
  if (overflow) fault("an integer beyond 64 bits");
  return value;
}

Value power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool overflow = false;
  if (base == 0 || base == 1) return exponent == 0 || base == 1 ? int64_t{1} : int64_t{0};
  if (base == -1) return exponent % 2 == 0 ? int64_t{1} : int64_t{-1};
  for (; exponent > 0 && !overflow; --exponent) overflow = __builtin_mul_overflow(result, base, &result);
  return integer_result(overflow, result);
}

Value repeat(const Value& sequence, int64_t times, Interpreter& in) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const auto* text = as_text(sequence)) {
    const size_t limit = in.budget.limits().bytes;
    in.budget.text(text->empty() ? 0 : n > limit / text->size() ? limit + 1 : n * text->size());
    std::string out;
    for (size_t i = 0; i < n && !text->empty(); ++i) out += *text;
    return text_value(std::move(out));
  }
  const auto* list = as_list(sequence);
  Values items;
  for (size_t i = 0; i < n && !list->items.empty(); ++i) {
    in.budget.spend(list->items.size());
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return in.list(std::move(items), list->kind);
}

bool repeats(const Value& v) {
  const auto* list = as_list(v);
  return as_text(v) || (list && list->kind <= Sequence::tuple);
}

}  // namespace

Value apply_binary(std::string_view op, const Value& a, const Value& b, Interpreter& in) {
  if (op == "~") return in.budget.text(0), in.text(in.string(a) + in.string(b));
  if (as_undefined(a)) undefined_fault(a);
  if (as_undefined(b)) undefined_fault(b);
  const int64_t* m = integer_of(a);
  const int64_t* n = integer_of(b);
  if (m && n) {
    int64_t r = 0;
    if (op == "+") return integer_result(__builtin_add_overflow(*m, *n, &r), r);
    if (op == "-") return integer_result(__builtin_sub_overflow(*m, *n, &r), r);
    if (op == "*") return integer_result(__builtin_mul_overflow(*m, *n, &r), r);
    if (op == "**" && *n >= 0) return power(*m, *n);
    if (*n == 0 && op != "**") fault("division by zero");
    if (op == "//" || op == "%") {
      if (*n == -1) return op == "%" ? Value(int64_t{0}) : integer_result(__builtin_sub_overflow(int64_t{0}, *m, &r), r);
      const bool down = *m % *n != 0 && ((*m < 0) != (*n < 0));
      return op == "//" ? *m / *n - down : *m % *n + (down ? *n : 0);
    }
  }
  double x = 0, y = 0;
  if (number_of(a, x) && number_of(b, y)) {
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (op == "**") {
      if (x == 0 && y < 0) fault("0.0 cannot be raised to a negative power");
      return std::pow(x, y);
    }
    if (y == 0) fault("division by zero");
    if (op == "/") return x / y;
    double rest = std::fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    if (op == "%") return rest == 0 ? std::copysign(0.0, y) : rest;
    return std::floor((x - rest) / y + 0.5);
  }
  if (op == "+") {
    const auto* s = as_text(a);
    const auto* t = as_text(b);
    if (s && t) return in.budget.text(s->size() + t->size()), text_value(*s + *t);
    const auto* p = as_list(a);
    const auto* q = as_list(b);
    if (p && q && p->kind == q->kind && p->kind <= Sequence::tuple) {
      Values items = p->items;
      items.insert(items.end(), q->items.begin(), q->items.end());
      return in.list(std::move(items), p->kind);
    }
  }
  if (op == "*" && n && repeats(a)) return repeat(a, *n, in);
  if (op == "*" && m && repeats(b)) return repeat(b, *m, in);
  if (op == "%" && as_text(a)) return percent_format(*as_text(a), b, in);
  unsupported(op, a, b);
}

bool ordered(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (op == "<") return less(a, b, budget);
  if (op == ">") return less(b, a, budget);
  return op == "<=" ? less(a, b, budget) || equal(a, b, budget) : less(b, a, budget) || equal(a, b, budget);
}

Value slice(const Value& object, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step, Interpreter& in) {
  if (as_undefined(object)) undefined_fault(object);
  const auto* text = as_text(object);
  const auto* list = as_list(object);
  if (!text && (!list || list->kind > Sequence::range)) fault("'{}' object cannot be sliced", type_name(object));
  if (step == 0) fault("the step of a slice cannot be zero");
  const auto n = static_cast<int64_t>(text ? code_points(*text) : list->items.size());
  in.budget.spend(text ? text->size() / 128 : 0);
  // slice.indices() of Python.
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
  const auto place = [&](std::optional<int64_t> i, int64_t absent) {
    if (!i) return absent;
    return *i < 0 ? std::max(*i + n, low) : std::min(*i, high);
  };
  const int64_t begin = place(start, step < 0 ? high : low), end = place(stop, step < 0 ? low : high);
  if (text && step == 1) {
    if (begin >= end) return text_value("");
    const size_t from = code_point_offset(*text, static_cast<size_t>(begin));
    const std::string_view rest = std::string_view(*text).substr(from);
    return in.text(std::string(rest.substr(0, code_point_offset(rest, static_cast<size_t>(end - begin)))));
  }
  const Values items = text ? in.iterate(object) : list->items;
  Values taken;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!text) return in.list(std::move(taken), list->kind);
  std::string out;
  for (const Value& item : taken) out += *as_text(item);
  return in.text(std::move(out));
}

Value percent_format(const std::string& format, const Value& arguments, Interpreter& in) {
  const auto* tuple = as_list(arguments);
  if (tuple && tuple->kind != Sequence::tuple) tuple = nullptr;
  size_t next = 0;
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : 0;
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("srdi").find(kind) == std::string_view::npos || kind == 0) fault("the format supports %s, %r, %d, %i and %% only");
    if (next >= (tuple ? tuple->items.size() : 1)) fault("not enough arguments for the format string");
    const Value& value = tuple ? tuple->items[next] : arguments;
    ++next;
    if (kind == 's') {
      out += in.string(value);
    } else if (kind == 'r') {
      const std::string text = in.string(in.list({value}));
      out += text.substr(1, text.size() - 2);
    } else {
      double number = 0;
      if (!number_of(value, number)) fault("%{} needs a number, not {}", kind, type_name(value));
      if (!integer_of(value) && !(std::abs(number) < 9e18)) fault("%{} of a float beyond 64 bits", kind);
      out += std::to_string(integer_of(value) ? *integer_of(value) : static_cast<int64_t>(number));
    }
    in.budget.text(out.size());
  }
  if (tuple && next < tuple->items.size()) fault("not all arguments converted by the format string");
  if (!tuple && next == 0 && !as_dict(arguments) && !as_list(arguments)) fault("not all arguments converted by the format string");
  return text_value(std::move(out));
}

}  // namespace halftone::jinja
