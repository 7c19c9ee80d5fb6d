#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "halftone/base/error.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

// Characters of Unicode 10 to 15 with a combining class or a decomposition in utf8proc. To the tokenizers package (0.23.3), whose tables
// are those of Unicode 9, they are characters without properties: nothing is reordered or composed across them.
constexpr struct {
  char32_t first, last;
} kYounger[] = {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},
                {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
                {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
                {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
                {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
                {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
                {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool younger(char32_t c) {
  const auto* range = std::lower_bound(std::begin(kYounger), std::end(kYounger), c, [](const auto& r, char32_t x) { return r.last < x; });
  return range != std::end(kYounger) && c >= range->first;
}

void append_nfc(std::string& out, std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, std::free);
  check(n >= 0, "expected UTF-8 to normalise, found {} bytes: {}", text.size(), utf8proc_errmsg(n));
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Characters below U+0300 are already in NFC in any order: their UTF-8 starts below 0xCC.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0xCC; })) return std::string(text);
  std::string out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    if (!younger(next_code_point(text, i))) continue;
    append_nfc(out, text.substr(begin, at - begin));
    out.append(text.substr(at, i - at));
    begin = i;
  }
  append_nfc(out, text.substr(begin));
  return out;
}

}  // namespace halftone
