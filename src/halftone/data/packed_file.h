#pragma once
#include <string>
#include <string_view>

namespace halftone {

// Error if the first bytes of a text, decompressed, show that it is packed (bzip2, ZIP, or compressed twice), Parquet, or UTF-16, which a
// reader of `expected` ("plain text") would misread. Names the format and what to do.
void refuse_packed(std::string_view first, const std::string& path, const char* expected);

// Error if they are the pointer that Git LFS leaves in the place of a file that was not downloaded.
void refuse_lfs_pointer(std::string_view first, const std::string& path, const char* expected);

// The first 4 KiB of a file, not decompressed.
std::string first_bytes(const std::string& path);

}  // namespace halftone
