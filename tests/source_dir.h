#pragma once
#include <cstdlib>
#include <string>

namespace halftone {

// The checkout that contains tests/golden and tests/assets: where the tests were built, or HALFTONE_SOURCE_DIR (a bundle on another
// machine, freshly generated goldens).
inline std::string source_dir() {
  const char* elsewhere = std::getenv("HALFTONE_SOURCE_DIR");
  return elsewhere != nullptr && *elsewhere != '\0' ? elsewhere : HALFTONE_SOURCE_DIR;
}

}  // namespace halftone
