#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "halftone/config/walk.h"

namespace halftone {

// Number of single-character insertions, deletions and substitutions between two words, or some number above `limit`.
int edit_distance(std::string_view a, std::string_view b, int limit = 1 << 20);

// Advice for an unknown name: torchtitan v0.2.2's name for another version's spelling, the nearest field (by dotted name, or by its last
// part in any section), the nearest section, or where to look.
std::string advice_for_unknown(std::string_view name, const ConfigIndex& index);

// "; did you mean X?" for the nearest of the words, or for those that begin with it ("mxfp8"), or "".
std::string nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace halftone
