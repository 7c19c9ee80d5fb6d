#include "halftone/eval/python_text.h"

#include <pcre2.h>
#include <utf8proc.h>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"

namespace halftone::python {

std::string lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();)
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(next_code_point(text, at)))));
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t at = 0;
  std::string out;
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(next_code_point(text, at)))));
  return out + lower(text.substr(at));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

Regex::Regex(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(error, text, sizeof text);
    fail("regular expression '{}': {} at position {}", pattern, reinterpret_cast<const char*>(text), at);
  }
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &groups_);
}

// visit(ends: begin and end of the match and of each group, PCRE2_UNSET for those without a part in it)
template <class Visit>
void Regex::for_each(std::string_view text, const Visit& visit) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create_from_pattern(code, nullptr),
                                                                                 &pcre2_match_data_free);
  uint32_t options = 0;
  for (size_t at = 0; at <= text.size();) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options, data.get(), nullptr);
    check(found > 0 || found == PCRE2_ERROR_NOMATCH, "regular expression: the search took too many steps (PCRE2 error {})", found);
    if (found == PCRE2_ERROR_NOMATCH) {
      if (options == 0) return;
      options = 0, next_code_point(text, at);  // behind an empty match
      continue;
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    visit(ends);
    at = ends[1];
    options = ends[0] == ends[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
    if (options != 0 && at == text.size()) return;
  }
}

std::vector<std::vector<std::string>> Regex::find_all(std::string_view text) const {
  std::vector<std::vector<std::string>> all;
  for_each(text, [&](const size_t* ends) {
    std::vector<std::string>& groups = all.emplace_back();
    for (uint32_t g = groups_ > 0 ? 1 : 0; g <= groups_; ++g)
      groups.emplace_back(ends[2 * g] == PCRE2_UNSET ? std::string_view() : text.substr(ends[2 * g], ends[2 * g + 1] - ends[2 * g]));
  });
  return all;
}

std::string Regex::substituted(std::string_view text, std::string_view by) const {
  std::string out;
  size_t done = 0;
  for_each(text, [&](const size_t* ends) {
    out += text.substr(done, ends[0] - done);
    for (size_t i = 0; i < by.size(); ++i) {
      if (by[i] != '\\' || i + 1 == by.size() || by[i + 1] < '1' || by[i + 1] > '9') {
        out += by[i];
        continue;
      }
      const auto group = static_cast<uint32_t>(by[++i] - '0');
      if (group <= groups_ && ends[2 * group] != PCRE2_UNSET) out += text.substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]);
    }
    done = ends[1];
  });
  return out += text.substr(done);
}

}  // namespace halftone::python
