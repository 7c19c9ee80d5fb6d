#pragma once
#include <random>
#include <string>
#include <vector>

namespace halftone {

// Random text of characters that affect how patterns split; wide: some of them non-ASCII.
inline std::string random_text(std::mt19937& rng, size_t parts, bool wide) {
  static const std::vector<std::string> kAscii = {"a",  "B",     "s", "t", "re", "LL", "ve", "d",        "M",    "0",   "7",
                                                  "42", "12345", " ", " ", "  ", "\t", "\n", "\r",       "\r\n", "\v",  "\f",
                                                  "'",  "''",    ".", ",", "(",  "_",  "=",  "        ", "\x1c", "\x7f"};
  static const std::vector<std::string> kWide = {"é",      "ß",      "е",      "中",   "한",       "٣", "Ⅷ", "\u00a0", "\u2028",
                                                 "\u3000", "\u180e", "\u0301", "🦊", "👩\u200d🚀", "ſ", "K", "\u0085"};
  std::string text;
  for (size_t i = 0; i < parts; ++i) {
    const auto& pool = wide && rng() % 6 == 0 ? kWide : kAscii;
    text += pool[rng() % pool.size()];
  }
  return text;
}

}  // namespace halftone
