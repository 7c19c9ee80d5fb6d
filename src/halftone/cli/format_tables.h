#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/formats/float_spec.h"
#include "halftone/formats/int_spec.h"
#include "halftone/formats/recipe.h"

namespace halftone {

// The output of `halftone formats`, from the tables of src/halftone/formats.
std::string element_table();
std::string scale_format_table();
std::string scale_rule_table();
std::string recipe_table();
// `here`: name of this machine's hardware, or "".
std::string support_table(std::string_view here);

inline constexpr Float kFloats[] = {Float::e4m3, Float::e5m2, Float::e3m2, Float::e2m3, Float::e2m1};
inline constexpr Int kInts[] = {Int::int8, Int::int4, Int::uint4, Int::ternary};
inline constexpr ScaleMode kScaleModes[] = {ScaleMode::floor, ScaleMode::ceil,     ScaleMode::rceil,
                                            ScaleMode::even,  ScaleMode::adaptive, ScaleMode::uos};

std::string_view name(Int i);
std::string_view name(Element e);
std::string_view name(ScaleFormat s);
std::string_view name(ScaleMode m);

// The condition under which amax = m * 2^k gives the larger of two block exponents: "m > 1.5", "m >= 1.75" or "never".
std::string bump_condition(Float f, ScaleMode mode);

struct NamedOperand {
  const char *name, *role;
  OperandSpec spec;
};
// The six operands of a recipe in the order of numerics.md section 7.
std::vector<NamedOperand> operands_of(const LinearRecipe& r);

}  // namespace halftone
