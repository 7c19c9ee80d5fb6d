#pragma once
#include <string>

namespace halftone {

// Module opened at run time, so that programs that do not need it stay small.
struct OpenModule {
  void* handle = nullptr;  // for dlsym
  std::string problem;     // why the module is missing, in one line
};

// Opens `file` from the folder of the program or of the library that holds this code. `hint` tells the user what to do if it is missing.
OpenModule open_module(const std::string& file, const char* hint);

}  // namespace halftone
