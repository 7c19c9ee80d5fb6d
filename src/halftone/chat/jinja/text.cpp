#include "halftone/chat/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "halftone/base/utf8.h"
#include "halftone/chat/jinja/value.h"

namespace halftone::jinja {
namespace {

struct Range {
  uint32_t first, last;
};
template <size_t n>
bool in(const Range (&ranges)[n], uint32_t c) {
  return std::any_of(ranges, ranges + n, [&](const Range& r) { return c >= r.first && c <= r.last; });
}

uint32_t decode(std::string_view text, size_t position, size_t bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  if (bytes == 1) return byte(0);
  uint32_t c = byte(0) & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) c = c << 6 | (byte(i) & 0x3Fu);
  return c;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(uint32_t c) { return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029; }

// General categories Cc, Cf, Cs, Co, Zs, Zl and Zp, which repr() escapes. It escapes unassigned code points too, whose set grows smaller
// with each version of Unicode; they are taken as printable.
constexpr Range kEscaped[] = {{0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
                              {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},     {0x1680, 0x1680},
                              {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},
                              {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
                              {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF},
                              {0xE01F0, 0x10FFFF}};

// Code points with several letters in the other case, with a title case of their own, or whose case depends on the neighbours.
constexpr Range kSpecialCase[] = {
    {0xDF, 0xDF},     {0x130, 0x130},   {0x149, 0x149},   {0x1C4, 0x1CC},   {0x1F0, 0x1F3},   {0x390, 0x390},   {0x3A3, 0x3A3},
    {0x3B0, 0x3B0},   {0x587, 0x587},   {0x10D0, 0x10FA}, {0x10FD, 0x10FF}, {0x1E96, 0x1E9A}, {0x1F50, 0x1F50}, {0x1F52, 0x1F52},
    {0x1F54, 0x1F54}, {0x1F56, 0x1F56}, {0x1F80, 0x1FAF}, {0x1FB2, 0x1FB4}, {0x1FB6, 0x1FB7}, {0x1FBC, 0x1FBC}, {0x1FC2, 0x1FC4},
    {0x1FC6, 0x1FC7}, {0x1FCC, 0x1FCC}, {0x1FD2, 0x1FD3}, {0x1FD6, 0x1FD7}, {0x1FE2, 0x1FE4}, {0x1FE6, 0x1FE7}, {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FF7}, {0x1FFC, 0x1FFC}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

// Start of the code point that ends before `end`.
size_t previous(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && end - start < 4 && (text[start] & 0xC0) == 0x80) --start;
  return start + code_point_bytes(text, start) == end ? start : end - 1;
}

}  // namespace

size_t code_point_bytes(std::string_view text, size_t position) {
  const auto lead = static_cast<uint8_t>(text[position]);
  const size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size() - position);
}

size_t code_points(std::string_view text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); i += code_point_bytes(text, i)) ++n;
  return n;
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; index > 0 && i < text.size(); --index) i += code_point_bytes(text, i);
  return i;
}

size_t space_bytes(std::string_view text, size_t position) {
  if (position >= text.size()) return 0;
  const size_t bytes = code_point_bytes(text, position);
  return is_space(decode(text, position, bytes)) ? bytes : 0;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto removed = [&](size_t at, size_t bytes) {
    return chars ? chars->find(text.substr(at, bytes)) != std::string_view::npos : is_space(decode(text, at, bytes));
  };
  size_t begin = 0, end = text.size();
  while (side != Side::right && begin < end) {
    const size_t bytes = code_point_bytes(text, begin);
    if (!removed(begin, bytes)) break;
    begin += bytes;
  }
  while (side != Side::left && end > begin) {
    const size_t start = previous(text, end);
    if (!removed(start, end - start)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t limit, bool from_right) {
  if (separator && separator->empty()) fault("split(): empty separator");
  std::vector<std::string_view> parts;
  const auto full = [&] { return limit >= 0 && parts.size() >= static_cast<size_t>(limit); };
  if (!separator) {
    std::string_view rest = strip(text, from_right ? Side::right : Side::left);
    while (!rest.empty()) {
      if (full()) {
        parts.push_back(rest);
        break;
      }
      size_t at = from_right ? rest.size() : 0;
      if (from_right) {
        while (at > 0 && !space_bytes(rest, previous(rest, at))) at = previous(rest, at);
        parts.push_back(rest.substr(at));
        rest = strip(rest.substr(0, at), Side::right);
      } else {
        while (at < rest.size() && !space_bytes(rest, at)) at += code_point_bytes(rest, at);
        parts.push_back(rest.substr(0, at));
        rest = strip(rest.substr(at), Side::left);
      }
    }
  } else {
    std::string_view rest = text;
    while (true) {
      const size_t at = full() ? std::string_view::npos : from_right ? rest.rfind(*separator) : rest.find(*separator);
      if (at == std::string_view::npos) break;
      parts.push_back(from_right ? rest.substr(at + separator->size()) : rest.substr(0, at));
      rest = from_right ? rest.substr(0, at) : rest.substr(at + separator->size());
    }
    parts.push_back(rest);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = code_point_bytes(text, i);
    if (!is_line_end(decode(text, i, bytes))) {
      i += bytes;
      continue;
    }
    lines.push_back(text.substr(begin, i - begin));
    begin = i += bytes + (text.substr(i, 2) == "\r\n");
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string change_case(std::string_view text, Case to) {
  std::string out;
  out.reserve(text.size());
  bool first = true;  // the next character begins a word
  for (size_t i = 0, bytes; i < text.size(); i += bytes) {
    bytes = code_point_bytes(text, i);
    const uint32_t c = decode(text, i, bytes);
    const bool raise = to == Case::upper || (to != Case::lower && first);
    if (c < 0x80) {
      const auto ascii = static_cast<char>(c);
      out += raise ? upper(ascii) : lower(ascii);
    } else {
      if (to == Case::title || in(kSpecialCase, c)) {
        fault("changing the case of '{}' is not supported", text.substr(i, bytes));
      }
      const auto code = static_cast<utf8proc_int32_t>(c);
      append_utf8(out, static_cast<char32_t>(raise ? utf8proc_toupper(code) : utf8proc_tolower(code)));
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (to == Case::title) first = !letter;
    if (to == Case::capitalize) first = false;
    if (to == Case::title_filter)
      first = is_space(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
  }
  return out;
}

void append_repr(std::string& out, std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t i = 0, bytes; i < text.size(); i += bytes) {
    bytes = code_point_bytes(text, i);
    const uint32_t c = decode(text, i, bytes);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\', out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (!in(kEscaped, c) || c == ' ') {
      out.append(text.substr(i, bytes));
    } else {
      out += c < 0x100 ? fmt::format("\\x{:02x}", c) : c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
    }
  }
  out += quote;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[400];
  const auto write = [&](std::chars_format format) {
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr);
  };
  std::string text = write(std::chars_format::scientific);
  int exponent = 0;
  const char* digits = text.data() + text.find('e') + 1;
  std::from_chars(digits + (*digits == '+'), text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return text;
  text = write(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t i = 0, bytes; i < text.size(); i += bytes) {
    bytes = code_point_bytes(text, i);
    const uint32_t c = decode(text, i, bytes);
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    if (const size_t at = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos; at != std::string_view::npos) {
      out += '\\', out += kTo[at];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", c);
    } else if (ascii && c >= 0x10000) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out.append(text.substr(i, bytes));
    }
  }
  out += '"';
}

}  // namespace halftone::jinja
