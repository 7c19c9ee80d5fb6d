#include "halftone/torch_ops/format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/config/value.h"
#include "halftone/formats/names.h"
#include "halftone/quantize/check_operand.h"

namespace halftone::library {
namespace {

constexpr Names<OperandSpec, 9> kSchemes = {{{"mxfp8_e4m3", detail::block(Element::e4m3, 32, ScaleFormat::e8m0)},
                                             {"mxfp8_e5m2", detail::block(Element::e5m2, 32, ScaleFormat::e8m0)},
                                             {"mxfp6_e3m2", detail::block(Element::e3m2, 32, ScaleFormat::e8m0)},
                                             {"mxfp6_e2m3", detail::block(Element::e2m3, 32, ScaleFormat::e8m0)},
                                             {"mxfp4", detail::block(Element::e2m1, 32, ScaleFormat::e8m0)},
                                             {"nvfp4", detail::block(Element::e2m1, 16, ScaleFormat::e4m3)},
                                             {"amdfp4", detail::block(Element::e2m1, 16, ScaleFormat::ue5m3)},
                                             {"mxint8", detail::block(Element::int8, 32, ScaleFormat::e8m0)},
                                             {"nvint4", detail::block(Element::int4, 16, ScaleFormat::e4m3)}}};
constexpr Names<ScaleFormat, 6> kScales = {{{"fp32", ScaleFormat::fp32},
                                            {"pow2", ScaleFormat::fp32_pow2},
                                            {"e8m0", ScaleFormat::e8m0},
                                            {"e4m3_scale", ScaleFormat::e4m3},
                                            {"ue5m3", ScaleFormat::ue5m3},
                                            {"bf16", ScaleFormat::bf16}}};
constexpr Names<int, 5> kRotations = {{{"0", 0}, {"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}}};

template <class T, size_t N>
std::string choices(const Names<T, N>& names) {
  return join(words_of(names));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// The default spec of an element.
OperandSpec spec_of(Element e) {
  switch (e) {
    case Element::e4m3:
    case Element::e5m2:
    case Element::ternary:
      return detail::tensor(e);
    case Element::int8:
    case Element::int4:
      return detail::rows(e);
    case Element::uint4:
      return detail::block(e, 32, ScaleFormat::bf16);
    default:
      return detail::block(e, 32, ScaleFormat::e8m0);
  }
}

std::optional<int> integer(std::string_view text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// "tensor", "row", "1x32", "32x32".
bool read_granularity(std::string_view word, OperandSpec& s) {
  if (word == "tensor" || word == "row") {
    s.granularity = word == "row" ? Granularity::row : Granularity::tensor, s.block = 0;
    return true;
  }
  const size_t x = word.find('x');
  if (x == std::string_view::npos) return false;
  const std::optional<int> a = integer(word.substr(0, x)), b = integer(word.substr(x + 1));
  if (!a || !b || (*a != 1 && *a != *b)) return false;
  s.granularity = *a == 1 ? Granularity::block : Granularity::tile, s.block = *b;
  return true;
}

template <class T, size_t N>
T read_choice(const Names<T, N>& names, const std::string& text, const std::string& key, const std::string& value) {
  const std::optional<T> found = find_named(names, value);
  check(found.has_value(), "format '{}': expected {} to be one of {}, found '{}'", text, key, choices(names), value);
  return *found;
}

void read_setting(const std::string& text, const std::string& key, const std::string& value, OperandSpec& s) {
  if (key == "two_level") {
    s.two_level = read_choice(kTwoLevelNames, text, key, value);
  } else if (key == "chain") {
    s.chain = read_choice(kChainNames, text, key, value);
  } else if (key == "choice") {
    s.choice = read_choice(kScaleChoiceNames, text, key, value);
  } else if (key == "clip") {
    s.clip = read_choice(kClipNames, text, key, value);
  } else if (key == "hadamard") {
    s.hadamard = read_choice(kRotations, text, key, value);
  } else if (key == "signs") {
    s.signs = read_choice(kSignsNames, text, key, value);
  } else if (key == "floor") {
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), s.scale_floor);
    check(problem == std::errc() && end == value.data() + value.size() && std::isfinite(s.scale_floor) && s.scale_floor >= 0x1p-126f,
          "format '{}': expected floor to be a finite number of at least 2^-126, found '{}'", text, value);
  } else {
    fail("format '{}': unknown setting '{}'; choose two_level, chain, choice, clip, hadamard, signs or floor", text, key);
  }
}

void read_scale(ScaleFormat scale, OperandSpec& s) {
  const bool mx = scale == ScaleFormat::e8m0, two = scale == ScaleFormat::e4m3 || scale == ScaleFormat::ue5m3;
  if (mx != (s.mode != ScaleMode::none))
    s.mode = !mx ? ScaleMode::none : s.element == Element::e2m1 ? ScaleMode::adaptive : ScaleMode::rceil;
  s.scale = scale, s.two_level = two ? TwoLevel::tensor : TwoLevel::none;
}

void read_word(const std::string& text, const std::string& word, Format& f) {
  OperandSpec& s = f.spec;
  const size_t equals = word.find('=');
  if (equals != std::string::npos) {
    read_setting(text, word.substr(0, equals), word.substr(equals + 1), s);
  } else if (word == "sr") {
    s.stochastic = true;
  } else if (word == "eden") {
    s.eden = true;
  } else if (word == "packed") {
    f.packed = true;
  } else if (const std::optional<ScaleMode> mode = find_named(kScaleModeNames, word)) {
    s.mode = *mode;
  } else if (!find_named(kScales, word) && !read_granularity(word, s)) {
    fail("format '{}': unknown word '{}'; expected tensor, row, 1xB or BxB, a scale ({}), a scale mode ({}), sr, eden, packed or key=value",
         text, word, choices(kScales), choices(kScaleModeNames));
  }
}

// The kind of a word.
std::string kind_of(const std::string& word) {
  if (const size_t equals = word.find('='); equals != std::string::npos) return word.substr(0, equals);
  if (word == "sr" || word == "eden" || word == "packed") return word;
  return find_named(kScaleModeNames, word) ? "the scale mode" : find_named(kScales, word) ? "the scale" : "which elements share a scale";
}

// Words without effect, and scales derived from a different element than the codes.
void check_words(const std::string& text, const std::vector<std::string>& words, const OperandSpec& s) {
  for (size_t i = 1; i < words.size(); ++i) {
    for (size_t j = 1; j < i; ++j) {
      check(kind_of(words[i]) != kind_of(words[j]), "format '{}': '{}' and '{}' both set {}; keep one", text, words[j], words[i],
            kind_of(words[i]));
    }
  }
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  const bool rotates = blocks || (s.granularity == Granularity::tensor && is_float(s.element)) || s.element == Element::int8;
  check(s.hadamard == 0 || (rotates && s.granularity != Granularity::row),
        "format '{}': a rotation goes with scales of blocks (1xB, BxB) or, of floats and int8, of the tensor", text);
  const bool rows = (s.element == Element::int8 || s.element == Element::int4) && s.granularity == Granularity::row;
  check(s.scale_floor == 0 || rows, "format '{}': floor is the smallest scale of int8 or int4 rows", text);
  const bool mode =
      std::any_of(words.begin() + 1, words.end(), [](const std::string& w) { return find_named(kScaleModeNames, w).has_value(); });
  check(s.clip != Clip::dynamic || !mode, "format '{}': clip=dynamic brings its own scales; leave the scale mode out", text);
  check(s.clip == Clip::none || s.mode != ScaleMode::uos, "format '{}': uos scales are not clipped; leave one out", text);
}

}  // namespace

Format parse_format(std::string_view given) {
  const std::string text(given);
  const std::vector<std::string> words = split(text, ':');
  Format f;
  if (words[0] == "hp") {
    check(words.size() == 1, "format '{}': an unquantised operand takes no further words", text);
    return f;
  }
  if (const std::optional<OperandSpec> scheme = find_named(kSchemes, words[0])) {
    f.spec = *scheme;
  } else {
    const std::optional<Element> element = find_named(kElementNames, words[0]);
    check(element.has_value(), "format '{}': unknown element or scheme '{}'; choose hp, {} or {}", text, words[0], choices(kElementNames),
          choices(kSchemes));
    f.spec = spec_of(*element);
  }
  // The scale first: it sets the mode and the second level that other words change.
  for (const std::string& word : words) {
    if (const std::optional<ScaleFormat> scale = find_named(kScales, word)) read_scale(*scale, f.spec);
  }
  for (size_t i = 1; i < words.size(); ++i) read_word(text, words[i], f);
  const bool names_signs = std::any_of(words.begin() + 1, words.end(), [](const std::string& w) { return w.starts_with("signs="); });
  if (f.spec.hadamard == 16 && !f.spec.eden && !names_signs) f.spec.signs = Signs::torchao;
  check_words(text, words, f.spec);
  check(!f.packed || bits_of(f.spec.element) == 4, "format '{}': only 4-bit codes are packed", text);
  QuantizeOperand q;
  q.want_row = true, q.row.spec = f.spec;
  try {
    check_operand(q);
  } catch (const Error& error) {
    fail("format '{}': {}", text, error.what());
  }
  return f;
}

std::string format_string(const OperandSpec& s, bool packed) {
  if (!s.quantized()) return "hp";
  std::string out(name_of(kElementNames, s.element));
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  out += blocks                              ? fmt::format(":{}x{}", s.granularity == Granularity::block ? 1 : s.block, s.block)
         : s.granularity == Granularity::row ? ":row"
                                             : ":tensor";
  out += fmt::format(":{}", name_of(kScales, s.scale));
  if (s.mode != ScaleMode::none) out += fmt::format(":{}", name_of(kScaleModeNames, s.mode));
  const bool two = s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3;
  if (two || s.two_level != TwoLevel::none) out += fmt::format(":two_level={}", name_of(kTwoLevelNames, s.two_level));
  if (s.chain != Fp4Chain::alto) out += fmt::format(":chain={}", name_of(kChainNames, s.chain));
  if (s.choice != ScaleChoice::amax) out += fmt::format(":choice={}", name_of(kScaleChoiceNames, s.choice));
  if (s.clip != Clip::none) out += fmt::format(":clip={}", name_of(kClipNames, s.clip));
  if (s.hadamard != 0) out += fmt::format(":hadamard={}", s.hadamard);
  if (s.hadamard != 0 && s.signs != (s.hadamard == 16 && !s.eden ? Signs::torchao : Signs::random))
    out += fmt::format(":signs={}", name_of(kSignsNames, s.signs));
  if (s.scale_floor != 0) out += fmt::format(":floor={}", s.scale_floor);
  if (s.stochastic) out += ":sr";
  if (s.eden) out += ":eden";
  if (packed) out += ":packed";
  return out;
}

namespace {

// Layer options that do not concern operands belong to a module, not to a single GEMM.
void read_option(const std::string& key, std::string value, const ConfigIndex& index) {
  const FieldEntry* option = index.find_field("quantize." + key);
  std::vector<std::string_view> names;
  for (const FieldEntry& f : index.fields) {
    if (f.info.scope != Scope::layer) names.push_back(leaf_of(f.name));
  }
  check(option != nullptr && option->info.scope != Scope::layer, "halftone.linear: unknown option '{}'; choose one of {}", key,
        join(names));
  std::replace(value.begin(), value.end(), '+', ',');  // in a list
  Json read;
  std::string wrong = parse_text(*option, value, read);
  if (wrong.empty()) wrong = set_value(*option, read);
  check(wrong.empty(), "halftone.linear: option {}: {}", key, wrong);
}

}  // namespace

LinearRecipe parse_recipe(const std::string& recipe, const std::string& options, const std::string& name) {
  // All GEMMs of a model use the same few.
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, LinearRecipe> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find({recipe, options}); found != known.end()) return found->second;
  RecipeOptions o;
  const ConfigIndex index = index_options(o);
  std::vector<std::string> given;
  if (!options.empty()) {
    for (const std::string& word : split(options, ',')) {
      const size_t equals = word.find('=');
      check(equals != std::string::npos, "halftone.linear: expected options as name=value,name=value, found '{}'", word);
      const std::string key = word.substr(0, equals);
      check(std::find(given.begin(), given.end(), key) == given.end(), "halftone.linear: option {} is given twice; keep one", key);
      given.push_back(key);
      read_option(key, word.substr(equals + 1), index);
    }
  }
  return known[{recipe, options}] = layer_recipe(recipe, o, name).linear;
}

}  // namespace halftone::library
