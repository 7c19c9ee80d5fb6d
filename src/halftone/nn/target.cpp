#include "halftone/nn/target.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "halftone/base/error.h"

namespace halftone::nn {
namespace {

constexpr size_t kMostCharacters = 500;
constexpr uint32_t kMostSteps = 1'000'000;  // some milliseconds a name

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

std::shared_ptr<const void> compile(const std::string& text, const std::string& place) {
  const std::string pattern = text.substr(3);
  check(pattern.size() <= kMostCharacters, "{}'re:{} ...': expected a pattern of at most {} characters, found {}", place,
        pattern.substr(0, 40), kMostCharacters, pattern.size());
  // Where Perl's syntax means something else, ECMAScript's.
  constexpr uint32_t kOptions = PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX | PCRE2_ALLOW_EMPTY_CLASS |
                                PCRE2_MATCH_UNSET_BACKREF | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &error, &at, /*context=*/nullptr);
  check(code != nullptr, "{}'{}': not a valid pattern ({} at character {})", place, text, message_of(error), at + 1);
  return {code, [](pcre2_code* p) { pcre2_code_free(p); }};
}

}  // namespace

Target::Target(std::string text, Rule rule, std::string place) : text_(std::move(text)), place_(std::move(place)), rule_(rule) {
  if (rule == Rule::c && text_.starts_with("re:")) pattern_ = compile(text_, place_);
}

bool Target::names(const Module& module) const {
  return rule_ == Rule::c && (text_ == module.fqn() || (text_ == "lm_head" && module.fqn() == "output"));
}

bool Target::matches(const Module& module) const {
  const std::string& name = module.fqn();
  if (rule_ == Rule::substring) return name.find(text_) != std::string::npos;
  if (pattern_ == nullptr) {
    const auto classes = module.class_names();
    return names(module) || std::find(classes.begin(), classes.end(), text_) != classes.end();
  }
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(pcre2_match_context_create(nullptr),
                                                                                          pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMostSteps);
  const int found = pcre2_match(static_cast<const pcre2_code*>(pattern_.get()), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0,
                                0, match.get(), context.get());
  check(found >= 0 || found == PCRE2_ERROR_NOMATCH, "{}'{}': matching it with {} failed ({}); write a simpler pattern", place_, text_, name,
        message_of(found));
  return found >= 0;
}

std::vector<Target> targets_of(const std::vector<std::string>& texts, Target::Rule rule, const std::string& place) {
  std::vector<Target> targets;
  for (const std::string& text : texts) targets.emplace_back(text, rule, place);
  return targets;
}

bool matches_any(const Module& module, const std::vector<Target>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const Target& t) { return t.matches(module); });
}

}  // namespace halftone::nn
