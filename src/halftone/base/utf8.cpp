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

}  // namespace halftone
