#include "halftone/models/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace halftone {
namespace {

// `name`, which has the form of `from`, in the form of `to`; none unless it has, with a canonical number.
std::optional<std::string> renamed(std::string_view name, std::string_view from, std::string_view to) {
  constexpr std::string_view kHole = "{}";
  const size_t hole = from.find(kHole);
  if (hole == std::string_view::npos) return name == from ? std::optional<std::string>(to) : std::nullopt;
  const std::string_view head = from.substr(0, hole), tail = from.substr(hole + kHole.size());
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  const std::string_view number = name.substr(head.size(), name.size() - head.size() - tail.size());
  if (number.size() > 6 || (number[0] == '0' && number.size() > 1)) return std::nullopt;
  if (!std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return std::string(to).replace(to.find(kHole), kHole.size(), number);
}

}  // namespace

std::optional<std::string> ModelFamily::hf_name(std::string_view native) const {
  for (const TensorName& t : tensors)
    if (auto name = renamed(native, t.native, t.hf)) return name;
  return std::nullopt;
}

std::optional<std::string> ModelFamily::native_name(std::string_view hf) const {
  for (const TensorName& t : tensors)
    if (auto name = renamed(hf, t.hf, t.native)) return name;
  return std::nullopt;
}

nlohmann::json ModelDescription::json() const {
  nlohmann::json object;
  for (const auto& [name, value] : hyper_parameters()) std::visit([&](const auto& v) { object[name] = v; }, value);
  return object;
}

}  // namespace halftone
