#pragma once
#include <string>

namespace halftone {

// Error where the file is compressed, Parquet, or text in UTF-16, by its first bytes: what reads `expected` ("plain text") would take it
// for that. It names what was found and how to unpack it.
void refuse_packed(const std::string& path, const char* expected);

}  // namespace halftone
