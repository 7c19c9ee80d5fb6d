#pragma once
#include <cstdlib>
#include <string>

namespace halftone {

// The checkout whose tests/golden and tests/assets are read: where the tests were built, or what HALFTONE_SOURCE_DIR names
// (a bundle on another machine, freshly generated goldens).
inline std::string source_dir() {
  const char* elsewhere = std::getenv("HALFTONE_SOURCE_DIR");
  return elsewhere != nullptr && *elsewhere != '\0' ? elsewhere : HALFTONE_SOURCE_DIR;
}

}  // namespace halftone
