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

// Measured choices of products between runs. The file holds a header with a checksum and records of one size; it is never trusted: a file
// that is cut, changed, of another model of device or of another version counts as empty and is replaced by the next add_choices().
//
// Folder of what outlives a run: $HALFTONE_CACHE, else $XDG_CACHE_HOME/halftone, else $HOME/.cache/halftone; empty where none is set.
std::filesystem::path cache_folder(const GetVariable& get);
// products-DEVICE-LIBRARY-HALFTONE in it, with _ in place of what is neither letter, digit nor point; empty without a folder.
std::filesystem::path choice_file(const std::filesystem::path& folder, std::string_view device, std::string_view library,
                                  std::string_view halftone);

struct LoadedChoices {
  std::vector<ProductChoice> choices;  // the oldest first
  std::string problem;                 // why there are none; empty where there is no file yet, too
};
LoadedChoices load_choices(const std::filesystem::path& file);

// At most this many stay, the newest.
constexpr size_t kMostChoices = 4096;
// Adds to what the file holds now, in place of choices of the same products, and replaces it as a whole: of several processes that write
// at once the last one's file stays. Returns why nothing was written, or nothing.
std::string add_choices(const std::filesystem::path& file, std::span<const ProductChoice> choices);

}  // namespace halftone::gemm
