#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/gemm/product_choice.h"

namespace halftone::gemm {

// Measured GEMM choices, kept between runs. The file holds a header with a checksum and fixed-size records. It is never trusted: a file
// that is truncated, modified, or of another device model or version counts as empty; the next add_choices() replaces it.
//
// Cache folder: $HALFTONE_CACHE, else $XDG_CACHE_HOME/halftone, else $HOME/.cache/halftone; empty if none is set.
std::filesystem::path cache_folder(const GetVariable& get);
// products-DEVICE-LIBRARY-HALFTONE in `folder`; characters other than letters, digits and points become _. Empty without a folder.
std::filesystem::path choice_file(const std::filesystem::path& folder, std::string_view device, std::string_view library,
                                  std::string_view halftone);

struct LoadedChoices {
  std::vector<ProductChoice> choices;  // oldest first
  std::string problem;                 // why there are none; also empty if the file does not exist yet
};
LoadedChoices load_choices(const std::filesystem::path& file);

// Maximum number of stored choices; the newest are kept.
constexpr size_t kMostChoices = 4096;
// Merges choices into the file, replacing those of the same GEMMs, and rewrites it atomically: with concurrent writers the last one's file
// wins. Returns why nothing was written, or an empty string.
std::string add_choices(const std::filesystem::path& file, std::span<const ProductChoice> choices);

}  // namespace halftone::gemm
