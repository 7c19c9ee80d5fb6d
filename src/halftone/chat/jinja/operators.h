#pragma once
#include <optional>
#include <string_view>

#include "halftone/chat/jinja/interpreter.h"

namespace halftone::jinja {

// + - ~ * / // % ** as Python's, on integers of 64 bits (a result beyond them is a Fault), floats, strings, lists and tuples.
Value apply_binary(std::string_view op, const Value& a, const Value& b, Interpreter& interpreter);
bool ordered(std::string_view op, const Value& a, const Value& b, Budget& budget);  // < <= > >=
Value slice(const Value& object, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step, Interpreter& interpreter);
// format % arguments: %s %r %d %i %%.
Value percent_format(const std::string& format, const Value& arguments, Interpreter& interpreter);

}  // namespace halftone::jinja
