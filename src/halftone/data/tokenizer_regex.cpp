#include "halftone/data/tokenizer_regex.h"

#include <algorithm>
#include <vector>

#include "halftone/data/tokenizer_json_fields.h"

namespace halftone {
namespace {

// PCRE2's own \w lacks marks and includes all numbers, while Oniguruma includes only digits and those of Latin-1. Its \s is otherwise the
// property, but also includes U+180E.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}", kHexDigits = "0-9A-Fa-f";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        atom_ = out_.size(), escape(false);
      } else if (c == '[') {
        atom_ = out_.size(), character_class();
      } else if (c == '(') {
        group();
      } else if (c == ')') {
        if (!groups_.empty()) atom_ = groups_.back(), groups_.pop_back();
        copy(1);
      } else if (c == '^' || c == '$') {  // Oniguruma's ^ and $ match at line boundaries
        atom_ = out_.size(), out_ += c == '^' ? "(?m:^)" : "(?m:$)", ++at_;
      } else if (c == '{' && interval()) {
        continue;
      } else if (c == '*' || c == '+' || c == '?') {
        copy(1);  // a second one is copied next: both engines read *? and *+ alike
      } else {
        atom_ = out_.size(), copy(1);
        while (at_ < pattern_.size() && (static_cast<uint8_t>(pattern_[at_]) & 0xC0) == 0x80) copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("split pattern {}: {} at byte {} means something else in PCRE2 and is not supported; write it another way",
         tokenizer_fields::shown(pattern_), what, at_);
  }
  void copy(size_t n) { out_ += pattern_.substr(at_, n), at_ += std::min(n, pattern_.size() - at_); }
  bool next_is(std::string_view text, size_t ahead = 0) const {
    return at_ + ahead <= pattern_.size() && pattern_.substr(at_ + ahead).starts_with(text);
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

  // Hexadecimal digits from `from` on, at most `most`.
  std::string_view hex(size_t from, size_t most) const {
    size_t n = 0;
    while (n < most && from + n < pattern_.size() && is_hex(pattern_[from + n])) ++n;
    return pattern_.substr(std::min(from, pattern_.size()), n);
  }

  void escape(bool in_class) {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    const auto put = [&](std::string_view text) { out_ += text, at_ += 2; };
    const auto set = [&](std::string_view members, bool negated) {
      if (in_class && negated) refuse(fmt::format("\\{} in a class", c));
      out_ += in_class ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
      at_ += 2;
    };
    switch (c) {
      case 's':
        return put("\\p{White_Space}");
      case 'S':
        return put("\\P{White_Space}");
      case 'w':
      case 'W':
        return set(kWord, c == 'W');
      case 'h':
      case 'H':
        return set(kHexDigits, c == 'H');
      case 'v':
        return put("\\x{0B}");
      case 'p':
      case 'P':
        if (!next_is("{", 2)) refuse(fmt::format("\\{} without braces", c));
        return copy(std::min(pattern_.find('}', at_), pattern_.size() - 1) - at_ + 1);
      case 'u': {
        const std::string_view digits = hex(at_ + 2, 4);
        if (digits.size() != 4) refuse("\\u without four digits");
        out_ += fmt::format("\\x{{{}}}", digits), at_ += 6;
        return;
      }
      case 'x':
        // In Oniguruma two digits are a byte.
        if (!next_is("{", 2) && (hex(at_ + 2, 2).size() != 2 || hex(at_ + 2, 1)[0] > '7')) refuse("\\x without braces");
        return copy(2);
      default:
        break;
    }
    constexpr std::string_view kAlike = "dDnrtfaeAzZK";  // K: drops the match so far
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool reference = is_digit(c) && c != '0' && !in_class;
    if ((letter && kAlike.find(c) == kAlike.npos && !(c == 'b' && in_class)) || (is_digit(c) && !reference)) refuse(fmt::format("\\{}", c));
    copy(2);
  }

  // With nested classes, whose members belong to it.
  void character_class() {
    int depth = 1;
    copy(1);
    if (next_is("^")) copy(1);
    if (next_is("]")) out_ += "\\]", ++at_;
    while (at_ < pattern_.size() && depth > 0) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(true);
      } else if (next_is("[:space:]")) {
        out_ += "\\p{White_Space}", at_ += 9;
      } else if (next_is("[:") || next_is("[^") || next_is("&&")) {
        refuse(fmt::format("{} in a class", pattern_.substr(at_, 2)));
      } else if (c == '[') {
        ++depth, ++at_;
      } else if (c == ']') {
        if (--depth > 0) {
          ++at_;
        } else {
          copy(1);
        }
      } else {
        copy(1);
      }
    }
  }

  void group() {
    groups_.push_back(out_.size());
    const bool first = at_ == 0;
    copy(1);
    if (!next_is("?")) {
      if (next_is("*")) refuse("(*");
      return;
    }
    if (next_is("?#")) return;
    if (next_is("?:") || next_is("?=") || next_is("?!") || next_is("?>") || next_is("?<")) return;
    copy(1);
    bool on = true;
    for (; at_ < pattern_.size() && pattern_[at_] != ':' && pattern_[at_] != ')'; ++at_) {
      const char c = pattern_[at_];
      if (c == '-' && on) {
        on = false, out_ += c;
      } else if (c == 'i') {
        out_ += c;
      } else if (c == 'm') {  // the dot matches line ends
        out_ += 's';
      } else {
        refuse(fmt::format("(?{}", c));
      }
    }
    // Without a colon it applies to the end of the group; in Oniguruma to the following alternatives too.
    if (next_is(")") && !first) refuse("an option that is not at the beginning");
  }

  // {n}, {n,}, {,m}, {n,m} after an atom: a following + repeats it again, and {n}? makes it optional.
  bool interval() {
    size_t end = at_ + 1;
    const auto number = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      return pattern_.substr(begin, end - begin);
    };
    const std::string_view least = number();
    const bool range = end < pattern_.size() && pattern_[end] == ',';
    if (range) ++end;
    const std::string_view most = range ? number() : least;
    if (end >= pattern_.size() || pattern_[end] != '}' || (least.empty() && most.empty())) return false;
    if (out_.empty()) refuse("an interval without anything before it");
    out_ += fmt::format("{{{}{}{}}}", least.empty() ? "0" : least, range ? "," : "", range ? most : "");
    at_ = end + 1;
    const bool again = next_is("+") || next_is("*") || (next_is("?") && !range);
    if (again) {
      out_.insert(atom_, "(?:");
      out_ += ')';
      copy(1);
    }
    return true;
  }

  std::string_view pattern_;
  size_t at_ = 0, atom_ = 0;  // position in the pattern; start of the last atom in the output
  std::string out_;
  std::vector<size_t> groups_;  // starts of open groups in the output
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace halftone
