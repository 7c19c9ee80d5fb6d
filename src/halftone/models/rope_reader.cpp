#include "halftone/models/rope_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Type = RopeScaling::Type;

constexpr std::array<std::pair<Type, const char*>, 5> kTypes{
    {{Type::none, "default"}, {Type::linear, "linear"}, {Type::llama3, "llama3"}, {Type::yarn, "yarn"}, {Type::dynamic, "dynamic"}}};
constexpr const char* kOriginal = "original_max_position_embeddings";

// A value that several entries may give; all entries present must agree.
template <class T>
struct Said {
  std::optional<T> value{};
  std::string from{};
};

template <class T, class Text>
void add(Said<T>& all, const T& value, const std::string& from, const std::string& what, Text&& text) {
  check(all.value.value_or(value) == value, "{}: {} contradicts {}; leave the wrong one out", what, text(from, value),
        text(all.from, all.value.value_or(value)));
  all.value = value, all.from = from;
}

std::string text_of(const RopeScaling& s) {
  std::string text = fmt::format("rope_type {}", name_of(s.type));
  if (s.type != Type::none) text += fmt::format(", factor {}", s.factor);
  if (s.type == Type::llama3) text += fmt::format(", low_freq_factor {}, high_freq_factor {}", s.low_freq_factor, s.high_freq_factor);
  if (s.type == Type::yarn)
    text += fmt::format(", beta_fast {}, beta_slow {}, attention_factor {}, truncate {}", s.beta_fast, s.beta_slow, s.attention_factor,
                        s.truncate);
  if (s.type == Type::llama3 || s.type == Type::yarn) text += fmt::format(", {} {}", kOriginal, s.original_context);
  return text;
}

class Reader {
 public:
  Reader(const Json& root, const std::string& what, bool latent) : root_(root), what_(what), latent_(latent) {}

  HfRope read() {
    if (is_set(root_, "max_position_embeddings")) context_ = size_member(root_, "max_position_embeddings", what_);
    if (is_set(root_, kOriginal)) original_ = size_member(root_, kOriginal, what_);
    if (is_set(root_, "rope_theta")) theta("rope_theta", positive_member(root_, "rope_theta", what_));
    for (const char* key : {"rope_scaling", "rope_parameters"})
      if (is_set(root_, key)) entry(root_[key], key);
    HfRope rope;
    rope.theta = theta_.value.value_or(rope.theta);
    rope.scaling = scaling_.value.value_or(RopeScaling{});
    rope.mscale_all_dim = mscale_all_dim_;
    const bool has_original = rope.scaling.type == Type::llama3 || rope.scaling.type == Type::yarn;
    check(!original_ || (has_original && *original_ == rope.scaling.original_context), "{}: {} = {} has no effect beside {}; leave it out",
          what_, kOriginal, original_.value_or(0), text_of(rope.scaling));
    return rope;
  }

 private:
  void theta(const std::string& from, double value) {
    add(theta_, value, from, what_, [](const std::string& key, double v) { return fmt::format("{} = {}", key, v); });
  }

  // `key` is rope_scaling or rope_parameters.
  void entry(const Json& rope, const std::string& key) {
    check(rope.is_object(), "{}: {} = {} is not supported, expected an object with rope_type", what_, key, short_text(rope));
    const std::string place = what_ + ": " + key;
    if (is_set(rope, "rope_theta")) theta(key + ".rope_theta", positive_member(rope, "rope_theta", place));
    if (is_set(rope, "partial_rotary_factor"))
      refuse_unless(rope["partial_rotary_factor"], Json::array({1}), key + ".partial_rotary_factor", what_);
    std::string name;
    for (const char* spelling : {"type", "rope_type"}) {  // "type" in old files
      if (!is_set(rope, spelling)) continue;
      const std::string said = string_member(rope, spelling, place);
      Json known = Json::array();
      for (const auto& [type, known_name] : kTypes) known.push_back(known_name);
      refuse_unless(said, known, fmt::format("{}.{}", key, spelling), what_);
      check(name.empty() || said == name, "{}: {}.type = \"{}\" contradicts {}.rope_type = \"{}\"; leave the wrong one out", what_, key,
            name, key, said);
      name = said;
    }
    if (name.empty()) name = "default";
    known_ = {"rope_theta", "type", "rope_type", "partial_rotary_factor"};
    check(!latent_ || name == "default" || name == "yarn" || !is_set(rope, "mscale_all_dim"),
          "{}: {}.mscale_all_dim scales scores, which is supported with rope_type \"yarn\" alone, found \"{}\"", what_, key, name);
    const RopeScaling s = scaling(rope, rope_type_named(name), place);
    for (const auto& [member, value] : rope.items()) {
      if (value.is_object()) refuse_unless(value, Json::array(), fmt::format("{}.{}", key, member), what_);  // RoPE by kinds of layers
      check(value.is_null() || std::find(known_.begin(), known_.end(), member) != known_.end(),
            "{}: {}.{} = {} has no effect with rope_type \"{}\"; leave it out, or correct rope_type", what_, key, member, short_text(value),
            name);
    }
    add(scaling_, s, key, what_, [](const std::string& k, const RopeScaling& v) { return fmt::format("{} ({})", k, text_of(v)); });
  }

  RopeScaling scaling(const Json& rope, Type type, const std::string& place) {
    const auto positive = [&](const char* member) {
      known_.emplace_back(member);
      return positive_member(rope, member, place);
    };
    const auto or_else = [&](const char* member, double usual) {
      known_.emplace_back(member);
      return is_set(rope, member) ? positive(member) : usual;
    };
    RopeScaling s;
    s.type = type;
    if (type == Type::none) return s;
    s.factor = positive("factor");
    if (type == Type::llama3) {
      s.low_freq_factor = positive("low_freq_factor"), s.high_freq_factor = positive("high_freq_factor");
      check(s.high_freq_factor > s.low_freq_factor, "{}: high_freq_factor {} must be above low_freq_factor {}", place, s.high_freq_factor,
            s.low_freq_factor);
    }
    if (type == Type::yarn) {
      s.beta_fast = or_else("beta_fast", s.beta_fast), s.beta_slow = or_else("beta_slow", s.beta_slow);
      check(s.beta_fast > s.beta_slow, "{}: beta_fast {} must be above beta_slow {}", place, s.beta_fast, s.beta_slow);
      known_.emplace_back("truncate");
      if (is_set(rope, "truncate")) s.truncate = bool_member(rope, "truncate", place);
      s.attention_factor = or_else("attention_factor", mscale(rope, s.factor, place));
    }
    s.original_context = original(rope, type, place);
    return s;
  }

  // yarn: the ratio of two factors of magnitude where both stand. Latent attention scales its scores by mscale_all_dim alone, too.
  double mscale(const Json& rope, double factor, const std::string& place) {
    const char *of_angles = "mscale", *of_all = "mscale_all_dim";
    known_.insert(known_.end(), {of_angles, of_all});
    const bool angles = is_set(rope, of_angles), all = is_set(rope, of_all);
    check(all || !angles, "{}: mscale has no effect without mscale_all_dim; leave it out", place);
    check(angles || !all || latent_, "{}: mscale_all_dim has no effect without mscale; leave it out", place);
    if (all) mscale_all_dim_ = positive_member(rope, of_all, place);
    if (!angles) return yarn_attention_factor(factor);
    if (factor <= 1) return 1;
    const auto magnitude = [&](const char* member) { return 0.1 * positive_member(rope, member, place) * std::log(factor) + 1; };
    return magnitude(of_angles) / magnitude(of_all);
  }

  int64_t original(const Json& rope, Type type, const std::string& place) {
    const bool own = is_set(rope, kOriginal);
    if (type == Type::llama3 || type == Type::yarn) known_.emplace_back(kOriginal);
    if (type == Type::linear) return RopeScaling{}.original_context;
    if (type == Type::dynamic || !own) {
      const auto context = type == Type::dynamic ? context_ : original_ ? original_ : context_;
      check(context.has_value(), "{}: {} needs {}", place, name_of(type), type == Type::dynamic ? "max_position_embeddings" : kOriginal);
      return *context;
    }
    return size_member(rope, kOriginal, place);
  }

  const Json& root_;
  const std::string& what_;
  bool latent_;
  std::optional<int64_t> context_, original_;  // max_position_embeddings; the other beside it, outside the objects
  Said<double> theta_;
  double mscale_all_dim_ = 0;
  Said<RopeScaling> scaling_;
  std::vector<std::string_view> known_;  // supported members of the entry
};

}  // namespace

RopeScaling::Type rope_type_named(const std::string& name) {
  std::vector<std::string_view> names;
  for (const auto& [type, known] : kTypes) {
    if (name == known) return type;
    names.emplace_back(known);
  }
  fail("model.overrides.rope_type: expected one of {}, found '{}'", fmt::join(names, ", "), name);
}

std::string name_of(RopeScaling::Type type) { return kTypes[static_cast<size_t>(type)].second; }

double yarn_attention_factor(double factor) { return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1; }

HfRope read_hf_rope(const Json& config, const std::string& what, bool latent) { return Reader(config, what, latent).read(); }

void write_hf_rope(const HfRope& rope, nlohmann::ordered_json& config) {
  const RopeScaling& s = rope.scaling;
  nlohmann::ordered_json entry{{"rope_type", name_of(s.type)}};
  if (s.type != Type::none) entry["factor"] = s.factor;
  if (s.type == Type::llama3) entry["low_freq_factor"] = s.low_freq_factor, entry["high_freq_factor"] = s.high_freq_factor;
  if (s.type == Type::yarn) {
    entry["beta_fast"] = s.beta_fast, entry["beta_slow"] = s.beta_slow, entry["attention_factor"] = s.attention_factor;
    if (!s.truncate) entry["truncate"] = false;
    if (rope.mscale_all_dim > 0) entry["mscale"] = entry["mscale_all_dim"] = rope.mscale_all_dim;
  }
  if (s.type == Type::llama3 || s.type == Type::yarn) entry[kOriginal] = s.original_context;
  config["rope_theta"] = rope.theta;
  if (s.type != Type::none) config["rope_scaling"] = entry;
  entry["rope_theta"] = rope.theta;
  config["rope_parameters"] = entry;
}

}  // namespace halftone
