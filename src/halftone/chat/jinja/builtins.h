#pragma once
#include <string_view>

#include "halftone/chat/jinja/value.h"

namespace halftone::jinja {

class Interpreter;

// Arguments of a call, by name after bind().
struct Args {
  Values positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // Moves named arguments to their positions. parameters: "a,b,c?": c is optional; "*": taken as they are.
  void bind(std::string_view parameters, std::string_view function);
  // An argument, or null if it was not passed.
  const Value* at(size_t i) const {
    if (i >= positional.size()) return nullptr;
    const auto* u = as_undefined(positional[i]);
    return u && !u->reason ? nullptr : &positional[i];
  }
};

// A filter, test, method or function in C++. self: the input, receiver, or undefined.
struct Native {
  std::string_view name, parameters;
  Value (*run)(Interpreter& interpreter, const Value& self, const Args& args);
};

template <size_t n>
const Native* find_native(const Native (&table)[n], std::string_view name) {
  for (const Native& native : table) {
    if (native.name == name) return &native;
  }
  return nullptr;
}
const Native* find_filter(std::string_view name);
const Native* find_test(std::string_view name);
const Native* find_global(std::string_view name);
const Native* find_method(const Value& self, std::string_view name);  // of str, list, tuple or dict

}  // namespace halftone::jinja
