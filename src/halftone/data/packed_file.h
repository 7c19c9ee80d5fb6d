#pragma once
#include <string>

namespace halftone {

// Error if the file's first bytes show that it is compressed, Parquet, or UTF-16 text, which a reader of `expected` ("plain text") would
// misread. Names the format and how to unpack it.
void refuse_packed(const std::string& path, const char* expected);

}  // namespace halftone
