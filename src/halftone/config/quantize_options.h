#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/value.h"

namespace halftone {

// Values of quantize.scheme: the recipes of formats/recipe.h, and bf16 for layers of a table that stay unquantized.
const std::vector<std::string_view>& quantize_schemes();
// The schemes that the field names, in its order.
std::vector<std::string_view> schemes_of(const QuantizeScheme& scheme);

// Whether the scheme has this option with this value.
bool scheme_takes(std::string_view scheme, const FieldEntry& option, const Json& value);
// A value as messages show it: a string without quotes.
std::string plain_text(const Json& value);

// An invalid combination: "quantize.use_hadamard does not go with quantize.use_2dblock_x: ...". Names are dotted; `other` may be empty.
struct Refusal {
  std::string option, other, text;
};
// The rules of numerics.md 7.4: every option belongs to one of the schemes, and the options of a scheme are compatible.
std::vector<Refusal> refusals(const RecipeOptions& options, const std::vector<std::string_view>& schemes);

// A torchtitan converter as a rule (platform.md 3.3): layers of one kind whose name contains an entry of `targets` and none of `ignore`.
// `filter` is the field with the entries. None for an unknown name.
struct Converter {
  std::string scheme, filter;
  std::string_view kind;
  RecipeOptions options;
  StringList targets, ignore;
};
std::optional<Converter> find_converter(const QuantizeConfig& quantize, const std::string& name);

}  // namespace halftone
