#include "halftone/data/jsonl_scan.h"

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "halftone/base/utf8.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

// Positions are pointers into the line; every function returns null where the text is not what it expects.
class Scanner {
 public:
  Scanner(std::string_view line, std::string_view text_key, std::string& text)
      : end_(line.data() + line.size()), text_key_(text_key), text_(text) {}

  bool object(const char* p) {
    p = blanks(p);
    if (p == end_ || *p != '{') return false;
    p = blanks(p + 1);
    bool found = false, input_ids = false;
    if (p != end_ && *p == '}') return false;  // no field
    for (;;) {
      const char* key = p;
      p = plain_string(p);
      if (p == nullptr) return false;
      const std::string_view name(key + 1, static_cast<size_t>(p - key) - 2);
      p = colon(p);
      if (p == nullptr || p == end_) return false;
      if (name == text_key_) {
        if (found || *p != '"') return false;
        found = true;
        p = text(p);
      } else {
        input_ids = input_ids || name == "input_ids";
        p = value(p);
      }
      if (p == nullptr) return false;
      p = blanks(p);
      if (p == end_) return false;
      if (*p == '}') break;
      if (*p != ',') return false;
      p = blanks(p + 1);
    }
    return found && !input_ids && blanks(p + 1) == end_;
  }

 private:
  static constexpr int kLevels = 64;

  const char* blanks(const char* p) const {
    while (p != end_ && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) ++p;
    return p;
  }
  const char* colon(const char* p) const {
    p = blanks(p);
    return p != end_ && *p == ':' ? blanks(p + 1) : nullptr;
  }

  // The first quote, backslash or control character; end_ if there is none.
  const char* special(const char* p) const {
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1F);
    for (; end_ - p >= 32; p += 32) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      const __m256i low = _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, control), bytes);
      const __m256i hit = _mm256_or_si256(low, _mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote), _mm256_cmpeq_epi8(bytes, slash)));
      if (const auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(hit)); mask != 0) return p + std::countr_zero(mask);
    }
    while (p != end_ && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
    return p;
  }

  // A string without escapes.
  const char* plain_string(const char* p) const {
    if (p == end_ || *p != '"') return nullptr;
    p = special(p + 1);
    return p != end_ && *p == '"' ? p + 1 : nullptr;
  }

  // Four hexadecimal digits; -1 if they are not.
  int32_t hex4(const char* p) const {
    if (end_ - p < 4) return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = p[i], letter = static_cast<char>(c | 0x20);
      const int digit = c >= '0' && c <= '9' ? c - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
      if (digit < 0) return -1;
      code = code * 16 + digit;
    }
    return code;
  }

  // A string; its contents are appended to `out` unless that is null.
  const char* string(const char* p, std::string* out) const {
    if (p == end_ || *p != '"') return nullptr;
    for (++p;;) {
      const char* stop = special(p);
      if (out != nullptr) out->append(p, stop);
      if (stop == end_) return nullptr;
      if (*stop == '"') return stop + 1;
      if (*stop != '\\' || end_ - stop < 2) return nullptr;
      p = stop + 2;
      static constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
      if (const size_t at = kNames.find(stop[1]); at != std::string_view::npos) {
        if (out != nullptr) *out += kMeanings[at];
      } else if (stop[1] == 'u') {
        const int32_t code = hex4(p);
        if (code < 0) return nullptr;
        p += 4;
        char32_t character = static_cast<char32_t>(code);
        if (code >= 0xD800 && code <= 0xDFFF) {  // UTF-16: a pair of surrogates
          const int32_t low = end_ - p >= 6 && p[0] == '\\' && p[1] == 'u' ? hex4(p + 2) : -1;
          if (code > 0xDBFF || low < 0xDC00 || low > 0xDFFF) return nullptr;
          character = 0x10000 + (static_cast<char32_t>(code - 0xD800) << 10) + static_cast<char32_t>(low - 0xDC00);
          p += 6;
        }
        if (out != nullptr) append_utf8(*out, character);
      } else {
        return nullptr;
      }
    }
  }
  const char* text(const char* p) const {
    text_.clear();
    return string(p, &text_);
  }

  const char* digits(const char* p) const {
    const char* start = p;
    while (p != end_ && *p >= '0' && *p <= '9') ++p;
    return p == start ? nullptr : p;
  }
  // Without an exponent, which may be out of range, and of up to 18 digits, so that it fits into 64 bits.
  const char* number(const char* p) const {
    if (*p == '-') ++p;
    if (p == end_) return nullptr;
    const char* start = p;
    p = *p == '0' ? p + 1 : digits(p);
    if (p == nullptr || p - start > 18) return nullptr;
    if (p != end_ && *p == '.') p = digits(p + 1);
    return p == nullptr || (p != end_ && (*p == 'e' || *p == 'E')) ? nullptr : p;
  }
  const char* literal(const char* p, std::string_view word) const {
    return static_cast<size_t>(end_ - p) >= word.size() && std::string_view(p, word.size()) == word ? p + word.size() : nullptr;
  }
  const char* scalar(const char* p) const {
    switch (*p) {
      case '"':
        return string(p, nullptr);
      case 't':
        return literal(p, "true");
      case 'f':
        return literal(p, "false");
      case 'n':
        return literal(p, "null");
      default:
        return number(p);
    }
  }

  // Any value: skipped, without recursion. Bit d of `objects` says whether level d is an object.
  const char* value(const char* p) const {
    uint64_t objects = 0;
    int depth = 0;
    for (;;) {
      // A value starts at p.
      if (p == nullptr || p == end_) return nullptr;
      if (*p == '{' || *p == '[') {
        if (depth == kLevels) return nullptr;
        const bool is_object = *p == '{';
        objects = (objects & ~(uint64_t{1} << depth)) | uint64_t{is_object} << depth;
        ++depth;
        p = blanks(p + 1);
        if (p == end_) return nullptr;
        if (*p != (is_object ? '}' : ']')) {
          if (is_object) p = key(p);
          continue;
        }
      } else {
        p = scalar(p);
        if (p == nullptr) return nullptr;
        p = depth == 0 ? p : blanks(p);
      }
      // Behind a value, or at the closing bracket of an empty one.
      for (;;) {
        if (depth == 0) return p;
        if (p == end_) return nullptr;
        const bool is_object = (objects >> (depth - 1)) & 1;
        if (*p == ',') {
          p = blanks(p + 1);
          if (is_object) p = key(p);
          break;
        }
        if (*p != (is_object ? '}' : ']')) return nullptr;
        p = --depth == 0 ? p + 1 : blanks(p + 1);
      }
    }
  }
  const char* key(const char* p) const {
    p = string(p, nullptr);
    return p == nullptr ? nullptr : colon(p);
  }

  const char* end_;
  std::string_view text_key_;
  std::string& text_;
};

}  // namespace

bool scan_jsonl_text(std::string_view line, std::string_view text_key, std::string& text) {
  return Scanner(line, text_key, text).object(line.data()) && is_valid_utf8(line);
}

}  // namespace halftone
