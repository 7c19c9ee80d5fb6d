#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/formats/recipe.h"

namespace halftone {

// One scale group, quantized step by step with the functions of src/halftone/formats.
struct WorkedExample {
  std::vector<std::pair<std::string, std::string>> steps;  // name and value
  std::vector<uint8_t> codes;
  std::vector<float> values;  // dequantized
};

// Quantizes x, one group that shares a scale (numerics.md 2 to 5). Stochastic operands use the random bits of `role` of the weight
// "layers.0.feed_forward.w1.weight" at seed 42 in step 1. With a rotation, x holds 16 or 32 tokens of one column.
WorkedExample work_out(const OperandSpec& spec, std::vector<float> x, std::string_view role);

// Numbers of the examples, exact in bf16: eight, or 16 or 32 for a rotation.
std::vector<float> example_numbers(int count);

// The specification of one format or scale rule with examples; "" for an unknown name.
std::string show_format(std::string_view name);
// Operands, hardware and one example for each kind of operand; `warnings` follow the operands.
std::string show_recipe(const LinearRecipe& recipe, const std::vector<std::string>& warnings);
// Every name that the two accept.
std::vector<std::string_view> shown_names();

}  // namespace halftone
