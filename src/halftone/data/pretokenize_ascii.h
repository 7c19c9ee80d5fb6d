#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "halftone/data/pretokenize.h"

namespace halftone {

// ASCII character classes of the known patterns: \p{L}, \p{N}, [\r\n], the rest of \s, everything else; `wide` is non-ASCII.
enum class AsciiClass : uint8_t { letter, digit, newline, space, other, wide };

inline constexpr std::array<AsciiClass, 256> kAsciiClass = [] {
  std::array<AsciiClass, 256> t{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    t[c] = c >= 0x80                             ? AsciiClass::wide
           : letter                              ? AsciiClass::letter
           : c >= '0' && c <= '9'                ? AsciiClass::digit
           : c == '\r' || c == '\n'              ? AsciiClass::newline
           : c == ' ' || (c >= '\t' && c < '\r') ? AsciiClass::space
                                                 : AsciiClass::other;
  }
  return t;
}();

// End of the piece that starts at s[p] (p < n), or 0 if it depends on a non-ASCII character.
template <SplitPattern kPattern>
inline size_t ascii_piece_end(const uint8_t* s, size_t p, size_t n) {
  using enum AsciiClass;
  constexpr bool kGpt2 = kPattern == SplitPattern::gpt2;
  auto at = [&](size_t i) { return kAsciiClass[s[i]]; };
  // End of the run of one class from i on; 0 if a wide character ends it.
  auto run = [&](size_t i, AsciiClass wanted) -> size_t {
    while (i < n && at(i) == wanted) ++i;
    return i < n && at(i) == wide ? 0 : i;
  };
  const AsciiClass first = at(p);
  if (first == wide) return 0;
  if (first == letter) return run(p + 1, letter);
  if (first == digit) {
    if constexpr (kPattern == SplitPattern::qwen2) return p + 1;
    if constexpr (kGpt2) return run(p + 1, digit);
    size_t end = p + 1;
    while (end < n && end < p + 3 && at(end) == digit) ++end;
    return end < p + 3 && end < n && at(end) == wide ? 0 : end;
  }
  const AsciiClass second = p + 1 < n ? at(p + 1) : newline;  // at the end of the text nothing can be a prefix
  if (second == wide) return 0;
  if (s[p] == '\'' && second == letter) {  // 's 't 'm 'd 're 've 'll, in any case except for GPT-2
    auto lower = [&](size_t i) -> uint8_t { return kGpt2 ? s[i] : s[i] | 0x20; };
    const uint8_t a = lower(p + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if (p + 2 < n) {
      if (at(p + 2) == wide) return 0;
      const uint8_t b = lower(p + 2);
      if (at(p + 2) == letter && ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))) return p + 3;
    }
  }
  if (kGpt2 ? s[p] == ' ' : first != newline) {  // one character before a word
    if (second == letter) return run(p + 2, letter);
    if (kGpt2 && second == digit) return run(p + 2, digit);
  }
  if (first == other || (s[p] == ' ' && second == other)) {
    const size_t end = run(p + 1, other);
    if (kGpt2 || end == 0) return end;
    size_t tail = end;
    while (tail < n && at(tail) == newline) ++tail;
    return tail;
  }
  // White space: up to its last line end, otherwise all but the last character if a word follows.
  size_t end = p, after_newline = 0;
  while (end < n && (at(end) == space || at(end) == newline)) {
    if (at(end) == newline) after_newline = end + 1;
    ++end;
  }
  if (end < n && at(end) == wide) return 0;
  if (!kGpt2 && after_newline != 0) return after_newline;
  if (end == n || end == p + 1) return end;
  return end - 1;
}

}  // namespace halftone
