#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "halftone/base/field.h"

namespace halftone {

// Values of free-form tables (`model.overrides`, `optimizer_kwargs`).
using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionTable = std::map<std::string, OptionValue>;

// Tables by name: `training.sources`, `data.names`.
using NamedTables = std::map<std::string, OptionTable>;

// One entry of `optimizer.param_groups`.
struct ParamGroup {
  std::string pattern;         // regular expression searched in the parameter's name
  std::string optimizer_name;  // as `optimizer.name`
  OptionTable optimizer_kwargs;
  // The number under this name in optimizer_kwargs; none when it is missing or no number.
  std::optional<double> number(const std::string& name) const {
    const auto at = optimizer_kwargs.find(name);
    if (at == optimizer_kwargs.end()) return std::nullopt;
    if (const auto* integer = std::get_if<int64_t>(&at->second)) return static_cast<double>(*integer);
    const auto* real = std::get_if<double>(&at->second);
    return real == nullptr ? std::nullopt : std::optional(*real);
  }
  bool operator==(const ParamGroup&) const = default;
};

// `quantize.scheme`: one scheme for `quantize.targets`, or a table scheme -> targets, in the order of the file.
struct QuantizeScheme {
  std::string name = "none";  // unused when `table` is not empty
  std::vector<std::pair<std::string, std::vector<std::string>>> table;
  bool is_none() const { return table.empty() && name == "none"; }
  bool operator==(const QuantizeScheme&) const = default;
};

using StringList = std::vector<std::string>;

// Each struct describes its settings once:
//   static void fields(auto& self, auto&& field) { field("lr", self.lr, "peak learning rate", {.min = 0}); }
// A member with its own fields() is a nested section. Reading, overriding, printing and documentation walk it (config/walk.h).
template <class T>
concept Section = requires(T& t) {
  T::fields(t, [](std::string_view, auto&, std::string_view, const FieldInfo& = {}) {});
};

}  // namespace halftone
