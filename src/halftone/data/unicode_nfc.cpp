#include <algorithm>
#include <vector>

#include "halftone/data/bpe_hash.h"
#include "halftone/data/unicode.h"
#include "halftone/data/unicode_nfc_tables.h"

namespace halftone {
namespace {

using namespace nfc_tables;

// Hangul syllables are computed (The Unicode Standard, section 3.12).
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

int combining_class(char32_t c) {
  const ClassRange* end = kClasses + kClassCount;
  const ClassRange* at = std::lower_bound(kClasses, end, c, [](const ClassRange& range, char32_t value) { return range.last < value; });
  return at != end && at->first <= c ? at->combining_class : 0;
}

void decompose(char32_t c, std::vector<char32_t>& out) {
  if (c - kSyllable < kSyllables) {
    const char32_t index = c - kSyllable;
    out.push_back(kLead + index / (kVowels * kTails));
    out.push_back(kVowel + index / kTails % kVowels);
    if (index % kTails != 0) out.push_back(kTail + index % kTails);
    return;
  }
  const Decomposition* end = kDecompositions + kDecompositionCount;
  const Decomposition* at =
      std::lower_bound(kDecompositions, end, c, [](const Decomposition& d, char32_t value) { return d.character < value; });
  if (at == end || at->character != c) return out.push_back(c);
  decompose(at->first, out);  // terminates: decompositions lead to smaller parts
  if (at->second != 0) decompose(at->second, out);
}

// The character that a pair composes to; 0 when there is none.
char32_t compose(char32_t a, char32_t b) {
  static const FlatMap<uint32_t> pairs = [] {
    FlatMap<uint32_t> map(kDecompositionCount);
    for (size_t i = 0; i < kDecompositionCount; ++i) {
      const Decomposition& d = kDecompositions[i];
      if (d.composes) map[uint64_t{d.first} << 32 | d.second] = d.character;
    }
    return map;
  }();
  if (a - kLead < kLeads && b - kVowel < kVowels) return kSyllable + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  if (a - kSyllable < kSyllables && (a - kSyllable) % kTails == 0 && b > kTail && b - kTail < kTails) return a + (b - kTail);
  const uint32_t* found = pairs.find(uint64_t{a} << 32 | b);
  return found ? *found : 0;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Characters below U+0300 are already in NFC in any order: their UTF-8 starts below 0xCC.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0xCC; })) return std::string(text);
  std::vector<char32_t> in, out;
  in.reserve(text.size());
  for (size_t i = 0; i < text.size();) decompose(next_code_point(text, i), in);
  std::vector<std::pair<int, char32_t>> marks;
  for (size_t i = 0; i < in.size();) {  // canonical order: marks between starters by class, stable
    size_t end = i;
    marks.clear();
    for (int cc; end < in.size() && (cc = combining_class(in[end])) != 0; ++end) marks.emplace_back(cc, in[end]);
    std::stable_sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t k = 0; k < marks.size(); ++k) in[i + k] = marks[k].second;
    i = std::max(end, i + 1);
  }
  size_t starter = SIZE_MAX;  // index in out of the last starter
  int last_class = 0;         // of the last character appended after it
  for (const char32_t c : in) {
    const int cc = combining_class(c);
    const bool adjacent = starter != SIZE_MAX && starter + 1 == out.size();
    if (starter != SIZE_MAX && (adjacent || (last_class < cc && last_class != 0))) {  // not blocked
      if (const char32_t composed = compose(out[starter], c)) {
        out[starter] = composed;
        continue;
      }
    }
    if (cc == 0) starter = out.size();
    last_class = cc;
    out.push_back(c);
  }
  std::string result;
  result.reserve(text.size());
  for (const char32_t c : out) append_utf8(result, c);
  return result;
}

}  // namespace halftone
