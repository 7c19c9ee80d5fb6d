#include "halftone/data/unicode.h"

namespace halftone {

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

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  while (true) {
    const size_t n = valid_utf8_prefix(text);
    out.append(text.substr(0, n));
    if (n == text.size()) return out;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(n + 1);
  }
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet = [] {
    ByteAlphabet a;
    a.byte.fill(-1);
    char16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      a.character[b] = printable ? static_cast<char16_t>(b) : next++;
      a.byte[a.character[b]] = static_cast<int16_t>(b);
    }
    return a;
  }();
  return alphabet;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, byte_alphabet().character[static_cast<uint8_t>(c)]);
  return out;
}

bool alphabet_to_bytes(std::string_view text, std::string& out) {
  out.clear();
  const ByteAlphabet& alphabet = byte_alphabet();
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c >= alphabet.byte.size() || alphabet.byte[c] < 0) return false;
    out.push_back(static_cast<char>(alphabet.byte[c]));
  }
  return true;
}

}  // namespace halftone
