#pragma once
#include <cstdio>
#include <exception>
#include <string>

namespace halftone {

// How the program ends after an exception: its exit status (2 what the user can change, 3 a loss or gradient that is not finite, 1 a defect
// of the program) and one line without "halftone: ".
struct Failure {
  int status;
  std::string line;
};
Failure failure_of(const std::exception& error);

// Flushes `out`; if that or an earlier write to it failed, one line that says why, which begins with `what`; else "".
std::string write_problem(std::FILE* out, const char* what);

}  // namespace halftone
