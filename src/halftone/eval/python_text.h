#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/chat/jinja/text.h"

// Text functions that give what Python's `str` and `re` give, which the rules of lm-evaluation-harness are written in. Text is UTF-8.
// Others are in chat/jinja/text.h, whose change of case refuses some letters.
namespace halftone::python {

using jinja::code_points;
using jinja::Side;
using jinja::strip;
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);  // the first character in title case, the others in lower case
std::string replaced(std::string text, std::string_view from, std::string_view to);

// A regular expression by `re`'s rules, as far as PCRE2 with Unicode properties has them. Error naming the pattern and what is wrong.
class Regex {
 public:
  explicit Regex(const std::string& pattern);
  // re.findall: for each match the whole of it where the pattern has no groups, else its groups ("" for those that took no part).
  std::vector<std::vector<std::string>> find_all(std::string_view text) const;
  std::string substituted(std::string_view text, std::string_view by) const;  // re.sub; `by`: with \1
  int64_t count(std::string_view text) const { return static_cast<int64_t>(find_all(text).size()); }

 private:
  std::shared_ptr<void> code_;
  uint32_t groups_ = 0;
  template <class Visit>
  void for_each(std::string_view text, const Visit& visit) const;
};

}  // namespace halftone::python
