#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "halftone/config/walk.h"

namespace halftone {

// Number of single-character insertions, deletions and substitutions between two words, or some number above `limit`.
int edit_distance(std::string_view a, std::string_view b, int limit = 1 << 20);

// What to say about a name that is no field and no section: torchtitan v0.2.2's name for another version's spelling,
// the nearest field (by dotted name, or by leaf name over all sections), the nearest section, or where to look.
std::string advice_for_unknown(std::string_view name, const ConfigIndex& index);

// "; did you mean X?" for the nearest of some words, or for those that it begins ("mxfp8"), or "".
std::string nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace halftone
