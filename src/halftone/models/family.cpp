#include "halftone/models/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace halftone {
namespace {

struct Numbers {
  std::string_view block{}, expert{};
};

// The numbers in `name` at "{}" and "{e}" of the pattern; none unless the name matches, with canonical numbers.
std::optional<Numbers> match(std::string_view name, std::string_view pattern) {
  Numbers found;
  while (true) {
    const size_t hole = pattern.find('{');
    const std::string_view head = pattern.substr(0, hole);
    if (!name.starts_with(head)) return std::nullopt;
    name.remove_prefix(head.size());
    if (hole == std::string_view::npos) return name.empty() ? std::optional(found) : std::nullopt;
    const bool expert = pattern[hole + 1] == 'e';
    pattern.remove_prefix(pattern.find('}') + 1);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0 || digits > 6 || (name[0] == '0' && digits > 1)) return std::nullopt;
    (expert ? found.expert : found.block) = name.substr(0, digits);
    name.remove_prefix(digits);
  }
}

std::string filled(std::string_view pattern, std::string_view block, std::string_view expert) {
  std::string name(pattern);
  for (const auto& [hole, number] : {std::pair<std::string_view, std::string_view>{"{}", block}, {"{e}", expert}})
    if (const size_t at = name.find(hole); at != std::string::npos) name.replace(at, hole.size(), number);
  return name;
}

}  // namespace

const ModelFamily::TensorName* ModelFamily::tensor(std::string_view native) const {
  for (const TensorName& t : tensors)
    if (match(native, t.native)) return &t;
  return nullptr;
}

std::optional<std::string> ModelFamily::hf_name(std::string_view native, int64_t expert) const {
  for (const TensorName& t : tensors)
    if (const auto numbers = match(native, t.native)) return filled(t.hf, numbers->block, std::to_string(expert));
  return std::nullopt;
}

std::optional<std::string> ModelFamily::native_name(std::string_view hf, int64_t* expert) const {
  for (const TensorName& t : tensors) {
    if (t.hf.empty()) continue;
    const auto numbers = match(hf, t.hf);
    if (!numbers) continue;
    if (expert != nullptr) *expert = numbers->expert.empty() ? 0 : std::stoll(std::string(numbers->expert));
    return filled(t.native, numbers->block, {});
  }
  return std::nullopt;
}

nlohmann::json ModelDescription::json() const {
  nlohmann::json object;
  for (const auto& [name, value] : hyper_parameters()) std::visit([&](const auto& v) { object[name] = v; }, value);
  return object;
}

}  // namespace halftone
