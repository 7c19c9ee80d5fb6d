#pragma once
#include <string>

namespace halftone {

// A module that is opened at run time, so that programs that do without it stay small.
struct OpenModule {
  void* handle = nullptr;  // for dlsym
  std::string problem;     // why there is none, in one line
};

// Opens `file`, which lies beside the program or beside the library that holds this code; `hint` says what to do where it does not.
OpenModule open_module(const std::string& file, const char* hint);

}  // namespace halftone
