#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/value.h"

namespace halftone {

// Names that quantize.scheme takes: the recipes of formats/recipe.h and bf16, which is useful as a key of a table.
const std::vector<std::string_view>& quantize_schemes();
// The schemes that the field names, in its order.
std::vector<std::string_view> schemes_of(const QuantizeScheme& scheme);

// Whether the scheme has the option of RecipeOptions::fields, and with this value.
bool scheme_takes(std::string_view scheme, const FieldEntry& option, const Json& value);
// Whether the value asks for anything: it is not the default, and not false, none or 0 where the default is not true.
bool asks(const FieldEntry& option, const Json& value);
// A value as messages show it: a string without quotes.
std::string plain_text(const Json& value);

// A combination that cannot work: "quantize.use_hadamard does not go with quantize.use_2dblock_x: ...". Names are dotted, `other` may
// be empty.
struct Refusal {
  std::string option, other, text;
};
// The legality of numerics.md 7.4, in one place: every option must belong to one of the schemes, and the options that a scheme has must
// go together.
std::vector<Refusal> refusals(const RecipeOptions& options, const std::vector<std::string_view>& schemes);

// What a converter of torchtitan asks of every Linear but those whose names contain a word of `ignore` (platform.md 3.3); `filter` is the
// field that holds the words. Nothing for converters of experts.
struct Converter {
  std::string scheme, filter;
  RecipeOptions options;
  StringList ignore;
};
std::optional<Converter> linear_converter(const QuantizeConfig& quantize, const std::string& name);

// What is wrong with this quantize.attention, or "".
std::string attention_refusal(std::string_view attention);

}  // namespace halftone
