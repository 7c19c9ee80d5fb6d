#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/formats/recipe.h"

namespace halftone {

// One scale group quantised step by step with the functions of src/halftone/formats.
struct WorkedExample {
  std::vector<std::pair<std::string, std::string>> steps;  // what, and its value
  std::vector<uint8_t> codes;
  std::vector<float> values;  // dequantised
};

// Quantises x, one group that shares a scale (numerics.md sections 2 to 5); stochastic operands draw as `role` of the weight
// "layers.0.feed_forward.w1.weight" does at seed 42 in step 1. With a rotation x holds its 16 or 32 tokens of one column.
WorkedExample work_out(const OperandSpec& spec, std::vector<float> x, std::string_view role);

// Numbers that examples quantise, exact in bf16: eight, or 16 or 32 for a rotation.
std::vector<float> example_numbers(int count);

// The specification of one format or scale rule with examples; "" when there is none of that name.
std::string show_format(std::string_view name);
// Operands, hardware and one example per kind of operand. `warnings` stand below the operands.
std::string show_recipe(const LinearRecipe& recipe, const std::vector<std::string>& warnings);
// Every name that the two take.
std::vector<std::string_view> shown_names();

}  // namespace halftone
