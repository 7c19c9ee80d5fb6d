#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "halftone/config/walk.h"

namespace halftone {

// A value between a file, the command line and a field: JSON that keeps the order of keys. Floats may be infinite; null is an optional
// without a value.
using Json = nlohmann::ordered_json;

// Stores `value` in the field and returns "", or returns what is wrong with it ("expected ..., found ...").
std::string set_value(const FieldEntry& field, const Json& value);
Json get_value(const FieldEntry& field);
// Reads a new entry of quantize.phases; the result as of set_value.
std::string set_phase(QuantizePhase& phase, const Json& table);
const Json& default_value(std::string_view name);  // of the field with this dotted name

// Parses a word of the command line for the field. Returns what is wrong with it, or "".
std::string parse_text(const FieldEntry& field, std::string_view text, Json& out);
// The value of `--model.overrides.NAME`: a number, true, false, or the text itself.
Json parse_scalar(std::string_view text);

bool is_bool(const FieldEntry& field);
bool is_list_of_lists(const FieldEntry& field);
bool is_table(const FieldEntry& field);         // accepts a table (quantize.scheme: also a string)
bool is_option_table(const FieldEntry& field);  // free names and scalar values

std::string type_name(const FieldEntry& field);  // "int", "float, optional", "list of strings", ...
std::string to_toml_text(const Json& value);     // as TOML; null is "None"
std::string toml_string(std::string_view text);  // as a TOML basic string
std::string shown(const Json& value);            // for messages: cut to a readable length
std::string join(const std::vector<std::string_view>& words, std::string_view separator = ", ");

}  // namespace halftone
