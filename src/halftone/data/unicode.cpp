#include "halftone/data/unicode.h"

namespace halftone {

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
