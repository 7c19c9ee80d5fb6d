#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace halftone {

// How a field relates to torchtitan v0.2.2: K = same name, type, default and meaning; A = accepted (type-checked, then
// mapped or ignored, one [compat] line when it is not the default); N = not applicable (any value but the default is an
// error); E = halftone's own.
enum class Mark { K, A, N, E };

// What a field of [quantize] is about: the operands of one scheme's products, a layer beside them, what any scheme applies to and how,
// the run (such fields stand beside recipe files and converters, too), or something else.
enum class Scope { other, operands, layer, rule, run };

struct FieldInfo {
  Mark mark = Mark::K;
  std::vector<std::string_view> choices{};  // allowed strings; empty = any. Of a list: allowed elements
  std::optional<double> min{};              // smallest allowed number
  std::string_view note{};                  // A: what happens instead; N: why not and what to use
  bool lenient = false;                     // a list also takes one plain string, a string also takes a bare integer
  bool any_case = false;                    // choices match in any case and are stored as listed
  Scope scope = Scope::other;
  std::vector<std::string_view> schemes{};  // that have the option, a trailing * for any ending; empty = all
  std::string_view alto{};                  // its value in preset "alto" where nothing is set; empty = the scheme's own
};

// Values of free-form tables (`model.overrides`, `optimizer_kwargs`).
using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionTable = std::map<std::string, OptionValue>;

// One entry of `optimizer.param_groups`.
struct ParamGroup {
  std::string pattern;         // regular expression searched in the parameter's name
  std::string optimizer_name;  // as `optimizer.name`
  OptionTable optimizer_kwargs;
  // The number that optimizer_kwargs has under a name; none where it has none, or something else than a number.
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

// Every setting is described once, by its struct's
//   static void fields(auto& self, auto&& field) { field("lr", self.lr, "peak learning rate", {.min = 0}); }
// where a member that has a fields() of its own is a nested section. Reading, overriding, printing and documentation
// all walk it (config/walk.h).
template <class T>
concept Section = requires(T& t) {
  T::fields(t, [](std::string_view, auto&, std::string_view, const FieldInfo& = {}) {});
};

}  // namespace halftone
