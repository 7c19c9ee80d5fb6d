#pragma once
#include <cstdio>
#include <exception>
#include <string>

namespace halftone {

// Exit status and message of an exception: 2 for what the user can change, 3 for a non-finite loss or gradient, 1 for a defect of the
// program; one line without "halftone: ".
struct Failure {
  int status;
  std::string line;
};
Failure failure_of(const std::exception& error);

// Flushes `out`. Returns one line, beginning with `what`, that says why this or an earlier write failed, else "".
std::string write_problem(std::FILE* out, const char* what);

}  // namespace halftone
