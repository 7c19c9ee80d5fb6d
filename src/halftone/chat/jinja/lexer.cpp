#include <algorithm>
#include <charconv>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/chat/jinja/ast.h"
#include "halftone/chat/jinja/text.h"

namespace halftone::jinja {
namespace {

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(const Template& source) : template_(source), s_(source.source) {}

  std::vector<Token> run() {
    while (at_ < s_.size()) root();
    add(Token::end, at_);
    return std::move(tokens_);
  }

 private:
  void add(Token::Type type, size_t at, std::string value = {}) { tokens_.push_back({type, static_cast<uint32_t>(at), std::move(value)}); }
  bool starts(std::string_view text) const { return s_.substr(at_).starts_with(text); }
  bool take(std::string_view text) { return starts(text) && (at_ += text.size(), true); }
  void skip_space() {
    while (const size_t bytes = space_bytes(s_, at_)) at_ += bytes;
  }
  // A tag or comment ended with this sign before its end mark.
  void trim_after(char sign, bool trim_line) {
    if (sign == '-') skip_space();
    if (sign == 0 && trim_line) take("\n");
    line_start_ = s_[at_ - 1] == '\n';
  }

  // Data up to the next mark, and what the mark opens.
  void root() {
    const size_t begin = at_;
    size_t mark = begin;
    do {
      mark = s_.find('{', mark);
    } while (mark < s_.size() && (mark + 1 == s_.size() || std::string_view("%{#").find(s_[mark + 1]) == std::string_view::npos) && ++mark);
    if (mark == std::string_view::npos) return at_ = s_.size(), add(Token::data, begin, std::string(s_.substr(begin)));
    const char kind = s_[mark + 1];
    at_ = mark + 2;
    char sign = 0;
    if (at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+')) sign = s_[at_++];
    data(begin, mark, sign, kind != '{');
    if (kind == '#') return comment(mark);
    if (kind == '%' && raw(mark)) return;
    add(kind == '{' ? Token::output_begin : Token::tag_begin, mark);
    inside(kind == '{', mark);
  }

  void data(size_t begin, size_t end, char sign, bool strip_line) {
    std::string_view text = s_.substr(begin, end - begin);
    if (sign == '-') {
      text = strip(text, Side::right);
    } else if (sign == 0 && strip_line) {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || line_start_) && strip(text.substr(line), Side::left).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::data, begin, std::string(text));
  }

  void comment(size_t mark) {
    const size_t begin = at_, end = s_.find("#}", at_);
    if (end == std::string_view::npos) fail_at(template_, mark, "the comment has no end: expected #}");
    at_ = end + 2;
    const char before = end > begin ? s_[end - 1] : 0;
    trim_after(before == '-' || before == '+' ? before : 0, true);
  }

  // {% raw %}...{% endraw %}
  bool raw(size_t mark) {
    const size_t after = at_;
    skip_space();
    if (!take("raw") || (skip_space(), false) || !(starts("%}") || starts("-%}"))) return at_ = after, false;
    if (take("-"))
      at_ += 2, skip_space();
    else
      at_ += 2;
    line_start_ = s_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t end = s_.find("{%", at_); end != std::string_view::npos; end = s_.find("{%", end + 2)) {
      at_ = end + 2;
      char sign = 0;
      if (at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+')) sign = s_[at_++];
      skip_space();
      if (!take("endraw")) continue;
      skip_space();
      char last = 0;
      if (at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+')) last = s_[at_++];
      if (!take("%}")) continue;
      data(begin, end, sign, true);
      trim_after(last, true);
      return true;
    }
    fail_at(template_, mark, "the raw block has no end: expected {% endraw %}");
  }

  // Tokens up to the end mark of an output or a tag.
  void inside(bool output, size_t mark) {
    const std::string_view end = output ? "}}" : "%}";
    std::string open;  // brackets
    while (true) {
      skip_space();
      if (at_ >= s_.size()) fail_at(template_, mark, fmt::format("expected {} before the end of the template", end));
      const size_t begin = at_;
      if (open.empty()) {
        const char sign = starts("-") || (!output && starts("+")) ? s_[at_] : 0;
        at_ += sign != 0;
        if (take(end)) return add(output ? Token::output_end : Token::tag_end, begin), trim_after(sign, !output);
        at_ = begin;
      }
      const char c = s_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name(c)) {
        while (at_ < s_.size() && is_name(s_[at_])) ++at_;
        add(Token::name, begin, std::string(s_.substr(begin, at_ - begin)));
      } else if (c == '"' || c == '\'') {
        string();
      } else {
        static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
        const auto found = std::find_if(std::begin(kOperators), std::end(kOperators), [&](std::string_view op) { return starts(op); });
        if (found == std::end(kOperators)) {
          fail_at(template_, at_, fmt::format("unexpected character '{}'", s_.substr(at_, code_point_bytes(s_, at_))));
        }
        if (const size_t bracket = std::string_view("([{").find(c); bracket != std::string_view::npos) {
          open += ")]}"[bracket];
        } else if (c == ')' || c == ']' || c == '}') {
          if (open.empty() || open.back() != c) fail_at(template_, at_, fmt::format("unexpected '{}'", c));
          open.pop_back();
        }
        at_ += found->size();
        add(Token::op, begin, std::string(*found));
      }
    }
  }

  void number() {
    const size_t begin = at_;
    std::string text;
    const auto digits = [&] {
      while (at_ < s_.size() && (is_digit(s_[at_]) || (s_[at_] == '_' && at_ + 1 < s_.size() && is_digit(s_[at_ + 1])))) {
        if (s_[at_] != '_') text += s_[at_];
        ++at_;
      }
    };
    digits();
    const bool after_dot = !tokens_.empty() && tokens_.back().type == Token::op && tokens_.back().value == ".";
    bool real = false;
    if (!after_dot && at_ + 1 < s_.size() && s_[at_] == '.' && is_digit(s_[at_ + 1])) real = true, text += s_[at_++], digits();
    if (!after_dot && at_ + 1 < s_.size() && (s_[at_] == 'e' || s_[at_] == 'E')) {
      const size_t sign = s_[at_ + 1] == '-' || s_[at_ + 1] == '+';
      if (at_ + 1 + sign < s_.size() && is_digit(s_[at_ + 1 + sign]))
        real = true, text += s_.substr(at_, 1 + sign), at_ += 1 + sign, digits();
    }
    if ((at_ < s_.size() && is_name(s_[at_])) || (!real && text.size() > 1 && text[0] == '0')) {
      fail_at(template_, begin, "expected a decimal number");
    }
    add(real ? Token::real : Token::integer, begin, std::move(text));
  }

  void string() {
    const size_t begin = at_;
    const char quote = s_[at_++];
    std::string text;
    const auto code = [&](size_t digits, int base) {
      uint32_t c = 0;
      const auto hex = s_.substr(at_, digits);
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), c, base);
      const bool whole = base == 8 || end == hex.data() + digits;
      if (error != std::errc() || !whole || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        fail_at(template_, at_, "wrong escape in a string");
      at_ += static_cast<size_t>(end - hex.data());
      append_utf8(text, c);
    };
    while (true) {
      if (at_ >= s_.size()) fail_at(template_, begin, "the string has no end");
      const char c = s_[at_++];
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (at_ >= s_.size()) continue;
      const char e = s_[at_++];
      static constexpr std::string_view kFrom = "ntr\\'\"abfv", kTo = "\n\t\r\\'\"\a\b\f\v";
      if (const size_t known = kFrom.find(e); known != std::string_view::npos)
        text += kTo[known];
      else if (e == 'x')
        code(2, 16);
      else if (e == 'u')
        code(4, 16);
      else if (e == 'U')
        code(8, 16);
      else if (e >= '0' && e <= '7')
        --at_, code(3, 8);
      else if (e == 'N')
        fail_at(template_, at_ - 2, "\\N{...} in a string is not supported");
      else if (e != '\n')
        text += c, text += e;
    }
    add(Token::text, begin, std::move(text));
  }

  const Template& template_;
  const std::string_view s_;
  size_t at_ = 0;
  bool line_start_ = true;  // the last mark ended a line
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(const Template& source, size_t at, std::string_view message) {
  const std::string_view before = std::string_view(source.source).substr(0, at);
  const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  fail("{}, line {}, column {}: {}", source.name, line, code_points(before.substr(before.rfind('\n') + 1)) + 1, message);
}

std::vector<Token> tokenize(const Template& source) { return Lexer(source).run(); }

}  // namespace halftone::jinja
