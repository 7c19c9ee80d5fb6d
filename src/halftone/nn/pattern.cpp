#include "halftone/nn/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "halftone/base/error.h"

namespace halftone::nn {
namespace {

constexpr size_t kMostCharacters = 500;
constexpr uint32_t kMostSteps = 1'000'000;  // some milliseconds per name

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Pattern::Pattern(const std::string& text, Begins begins, const std::string& place, const std::string& shown)
    : what_(fmt::format("{}'{}'", place, shown.size() <= kMostCharacters ? shown : shown.substr(0, 40) + " ...")) {
  check(text.size() <= kMostCharacters, "{}: expected a pattern of at most {} characters, found {}", what_, kMostCharacters, text.size());
  // ECMAScript's meaning where Perl's syntax differs.
  constexpr uint32_t kOptions =
      PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX | PCRE2_ALLOW_EMPTY_CLASS | PCRE2_MATCH_UNSET_BACKREF | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   kOptions | (begins == Begins::at_start ? PCRE2_ANCHORED : 0u), &error, &at, /*context=*/nullptr);
  check(code != nullptr, "{}: not a valid pattern ({} at character {})", what_, message_of(error), at + 1);
  code_ = {code, [](pcre2_code* p) { pcre2_code_free(p); }};
}

bool Pattern::matches(const std::string& name) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(pcre2_match_context_create(nullptr),
                                                                                          pcre2_match_context_free);
  check(match && context, "{}: out of memory", what_);
  pcre2_set_match_limit(context.get(), kMostSteps);
  const int found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                                match.get(), context.get());
  check(found >= 0 || found == PCRE2_ERROR_NOMATCH, "{}: matching it with {} failed ({}); write a simpler pattern", what_, name,
        message_of(found));
  return found >= 0;
}

}  // namespace halftone::nn
