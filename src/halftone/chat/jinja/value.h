#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace halftone::jinja {

// A fault of a template or its data; the interpreter adds the place and throws Error.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault(fmt::format(format, std::forward<Args>(args)...));
}

// Limits of one rendering.
struct Limits {
  size_t steps = 10'000'000;  // expressions and statements evaluated, list items made, 128-byte pieces of text made
  size_t bytes = 256 << 20;   // of the output, and of any string
  uint32_t depth = 600;       // nested evaluation, macro calls included
  uint32_t nesting = 200;     // lists in lists
  size_t range = 100'000;     // items of range(), as Jinja's sandbox
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  const Limits& limits() const { return limits_; }
  void spend(size_t steps) {
    if (steps > limits_.steps - spent_) fault("the template takes more than {} steps; does it loop?", limits_.steps);
    spent_ += steps;
  }
  // Before a text of so many bytes is made.
  void text(size_t bytes) {
    if (bytes > limits_.bytes) fault("the template makes a text of more than {} bytes", limits_.bytes);
    spend(bytes / 128);
  }

 private:
  Limits limits_;
  size_t spent_ = 0;
};

struct Value;
struct List;
struct Dict;
struct Object;
using Values = std::vector<Value>;

// Jinja's Undefined: prints as nothing, is false and empty; every other use is a Fault with the reason. A null reason: an argument that
// was not passed.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};
struct None {};
using Text = std::shared_ptr<const std::string>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

// Values are immutable, as in transformers' ImmutableSandboxedEnvironment, except namespaces: a List or Dict cannot contain itself.
struct Value : std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, ObjectPtr> {
  using variant::variant;
};

// Kinds of Python's iterables; all are materialised.
enum class Sequence : uint8_t { list, tuple, range, keys, values, items, generator };

struct List {
  Values items;
  Sequence kind = Sequence::list;
  uint32_t depth = 1;           // of nested containers
  mutable size_t consumed = 0;  // items of a generator that were taken
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion, keys unique
  uint32_t depth = 1;
};

// A namespace, loop, macro or function.
struct Object {
  virtual ~Object() = default;
  virtual const char* type() const = 0;
  uint32_t depth = 1;
};

Value text_value(std::string text);
Value undefined(std::string reason);
Value make_list(Values items, Budget& budget, Sequence kind = Sequence::list);
Value make_dict(std::vector<std::pair<Value, Value>> items, Budget& budget);  // a key that repeats replaces the earlier value
// Integers beyond 64 bits with sign and nesting beyond the limit are Faults.
Value from_json(const nlohmann::ordered_json& json, Budget& budget, uint32_t depth = 0);

inline const std::string* as_text(const Value& v) {
  const auto* text = std::get_if<Text>(&v);
  return text ? text->get() : nullptr;
}
inline const List* as_list(const Value& v) {
  const auto* list = std::get_if<ListPtr>(&v);
  return list ? list->get() : nullptr;
}
inline const Dict* as_dict(const Value& v) {
  const auto* dict = std::get_if<DictPtr>(&v);
  return dict ? dict->get() : nullptr;
}
inline const Undefined* as_undefined(const Value& v) { return std::get_if<Undefined>(&v); }
template <class T>
T* as_object(const Value& v) {
  const auto* object = std::get_if<ObjectPtr>(&v);
  return object ? dynamic_cast<T*>(object->get()) : nullptr;
}

std::string type_name(const Value& v);              // as Python's type(v).__name__
const int64_t* integer_of(const Value& v);          // of an int or bool, else null
bool number_of(const Value& v, double& number);     // of an int, bool or float
[[noreturn]] void undefined_fault(const Value& v);  // for a use that Undefined does not allow
bool truth(const Value& v);
bool equal(const Value& a, const Value& b, Budget& budget);  // ==
bool less(const Value& a, const Value& b, Budget& budget);   // <
const Value* find(const Dict& dict, const Value& key, Budget& budget);
const Value* find(const Dict& dict, std::string_view key, Budget& budget);

std::string str(const Value& v, Budget& budget);  // str(), as templates print
struct JsonStyle {
  bool ascii = false, sort_keys = false, indented = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};
std::string to_json(const Value& v, const JsonStyle& style, Budget& budget);  // json.dumps()

}  // namespace halftone::jinja
