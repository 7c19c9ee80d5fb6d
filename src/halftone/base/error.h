#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace halftone {

// A fault outside the program (file, configuration, shape, missing device): the message says what was expected, what was found and what to
// do. The command line prints it on one line and exits with status 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Non-finite loss or gradient norm: exit status 3.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

template <class... Args> [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// check(m == n, "expected {} rows, found {}", m, n): throws Error. For boundary conditions; always pass the values.
template <class... Args> void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace halftone
