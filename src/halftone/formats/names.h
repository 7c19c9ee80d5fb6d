#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/formats/recipe.h"

namespace halftone {

// Spelling of operand properties in the configuration, recipe files and format strings.
template <class T, size_t N>
using Names = std::array<std::pair<std::string_view, T>, N>;

constexpr Names<Element, 9> kElementNames = {{{"e4m3", Element::e4m3},
                                              {"e5m2", Element::e5m2},
                                              {"e3m2", Element::e3m2},
                                              {"e2m3", Element::e2m3},
                                              {"e2m1", Element::e2m1},
                                              {"int8", Element::int8},
                                              {"int4", Element::int4},
                                              {"uint4", Element::uint4},
                                              {"ternary", Element::ternary}}};
constexpr Names<ScaleMode, 6> kScaleModeNames = {{{"floor", ScaleMode::floor},
                                                  {"ceil", ScaleMode::ceil},
                                                  {"rceil", ScaleMode::rceil},
                                                  {"even", ScaleMode::even},
                                                  {"adaptive", ScaleMode::adaptive},
                                                  {"uos", ScaleMode::uos}}};
constexpr Names<TwoLevel, 3> kTwoLevelNames = {
    {{"none", TwoLevel::none}, {"tensorwise", TwoLevel::tensor}, {"blockwise", TwoLevel::macro}}};
constexpr Names<Fp4Chain, 2> kChainNames = {{{"alto", Fp4Chain::alto}, {"torchao", Fp4Chain::torchao}}};
constexpr Names<Signs, 3> kSignsNames = {{{"random", Signs::random}, {"deterministic", Signs::deterministic}, {"torchao", Signs::torchao}}};
constexpr Names<ScaleChoice, 3> kScaleChoiceNames = {
    {{"squared", ScaleChoice::squared}, {"absolute", ScaleChoice::absolute}, {"largest", ScaleChoice::largest}}};
constexpr Names<Clip, 3> kClipNames = {{{"none", Clip::none}, {"static", Clip::fixed}, {"dynamic", Clip::dynamic}}};

template <class T, size_t N>
constexpr std::optional<T> find_named(const Names<T, N>& names, std::string_view word) {
  for (const auto& [name, value] : names) {
    if (name == word) return value;
  }
  return std::nullopt;
}

template <class T, size_t N>
constexpr std::string_view name_of(const Names<T, N>& names, const T& wanted, std::string_view otherwise = "?") {
  for (const auto& [name, value] : names) {
    if (value == wanted) return name;
  }
  return otherwise;
}

template <class T, size_t N>
std::vector<std::string_view> words_of(const Names<T, N>& names) {
  std::vector<std::string_view> words;
  for (const auto& [name, value] : names) words.push_back(name);
  return words;
}

}  // namespace halftone
