#pragma once
#include <optional>
#include <string_view>
#include <vector>

namespace halftone {

// How a field relates to torchtitan v0.2.2. K: same name, type, default and meaning. A: accepted without effect (type-checked, named in a
// [compat] line when it is not the default). N: not available; any value but the default is an error, and no list shows the field.
// E: halftone's own.
enum class Mark { K, A, N, E };

// Scope of a field of [quantize]: operands of one scheme's GEMMs, a layer beside them, targets and preset of any scheme, the run (such
// fields are also allowed beside recipe files and converters), or something else.
enum class Scope { other, operands, layer, rule, run };

struct FieldInfo {
  Mark mark = Mark::K;
  std::vector<std::string_view> choices{};  // allowed strings, or elements of a list; empty = any
  std::optional<double> min{};              // smallest allowed number
  std::string_view note{};                  // A: what happens instead; N: why not, and what to use
  bool lenient = false;                     // a list also accepts one string, a string also accepts an integer
  bool any_case = false;                    // choices match in any case and are stored as listed
  Scope scope = Scope::other;
  std::vector<std::string_view> schemes{};  // schemes that have the option, a trailing * for any ending; empty = all
  std::string_view alto{};                  // value in preset "alto" when unset; empty = the scheme's own
};

}  // namespace halftone
