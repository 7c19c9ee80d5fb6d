#include "halftone/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace halftone {

size_t valid_utf8_prefix(std::string_view text) {
  const auto* s = reinterpret_cast<const uint8_t*>(text.data());
  const size_t n = text.size();
  size_t i = 0;
  while (i < n) {
    while (i + 32 <= n) {  // ASCII, 32 bytes per iteration
      uint64_t w[4];
      std::memcpy(w, s + i, 32);
      if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080ull) break;
      i += 32;
    }
    if (i >= n) break;
    const uint8_t c = s[i];
    if (c < 0x80) {
      ++i;
      continue;
    }
    const size_t left = n - i;
    auto follows = [&](size_t k, uint8_t low, uint8_t high) { return k < left && s[i + k] >= low && s[i + k] <= high; };
    if (c >= 0xC2 && c <= 0xDF) {
      if (!follows(1, 0x80, 0xBF)) return i;
      i += 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
      if (!follows(1, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF) || !follows(2, 0x80, 0xBF)) return i;
      i += 3;
    } else if (c >= 0xF0 && c <= 0xF4) {
      if (!follows(1, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF) || !follows(2, 0x80, 0xBF) || !follows(3, 0x80, 0xBF)) return i;
      i += 4;
    } else {
      return i;
    }
  }
  return n;
}

char32_t next_code_point(std::string_view text, size_t& position) {
  const auto* s = reinterpret_cast<const uint8_t*>(text.data()) + position;
  if (s[0] < 0x80) return position += 1, s[0];
  if (s[0] < 0xE0) return position += 2, (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
  if (s[0] < 0xF0) return position += 3, (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
  return position += 4, (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

void append_utf8(std::string& out, char32_t c) {
  auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

}  // namespace halftone
