#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/quantize_config.h"

namespace halftone {

// Names that quantize.scheme takes: the recipes of formats/recipe.h and bf16, which is useful as a key of a table.
const std::vector<std::string_view>& quantize_schemes();

// Schemes that have the option ("use_hadamard"); a trailing * stands for any ending. Empty: every scheme has it.
// The table of docs/recipes.md section 1.
std::vector<std::string_view> schemes_with(std::string_view option);
bool option_belongs(std::string_view option, std::string_view scheme);
// Options of which some scheme has none.
const std::vector<std::string_view>& placed_options();

// The schemes that the field names, in its order.
std::vector<std::string_view> schemes_of(const QuantizeScheme& scheme);

// What is wrong with this quantize.attention, or "".
std::string attention_refusal(std::string_view attention);

// Fields of [quantize] that are about the run and not about one scheme: they stand beside any source of rules.
bool is_run_option(std::string_view option);

}  // namespace halftone
