#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "halftone/base/utf8.h"

namespace halftone {

// The text with every byte outside well-formed UTF-8 replaced by U+FFFD; for display.
std::string replace_invalid_utf8(std::string_view text);

// GPT-2's byte-level alphabet: every byte is written as one printable character. Bytes '!'..'~', 0xA1..0xAC and 0xAE..0xFF represent
// themselves (as code points); the other 68, in increasing order, are U+0100, U+0101, ...
struct ByteAlphabet {
  std::array<char16_t, 256> character;  // of a byte
  std::array<int16_t, 0x144> byte;      // of a character below U+0144; -1 if it is not in the alphabet
};
const ByteAlphabet& byte_alphabet();
// Bytes written in the alphabet, as UTF-8.
std::string bytes_to_alphabet(std::string_view bytes);
// The reverse, from well-formed UTF-8; false (out unspecified) if a character is not in the alphabet.
bool alphabet_to_bytes(std::string_view text, std::string& out);

// Normalization form C (UAX 15) of well-formed UTF-8 by the properties of Unicode 9, as in the `tokenizers` package: combining marks added
// later are not reordered. Text without characters from U+0300 on is returned unchanged.
std::string to_nfc(std::string_view text);

}  // namespace halftone
