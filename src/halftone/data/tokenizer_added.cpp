#include "halftone/data/tokenizer_added.h"

#include <pcre2.h>

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

bool is_white_space(char32_t c) {  // the property White_Space
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Start of the character that ends before text[end].
size_t previous_character(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

}  // namespace

// Word characters as defined by UTS 18 for \w, through PCRE2's properties.
struct AddedTokenMatcher::Context {
  pcre2_code* word = nullptr;
  Context() {
    const char* pattern = "^[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
    int error = 0;
    size_t offset = 0;
    word = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, nullptr);
    check(word != nullptr, "PCRE2 10.40 or later is needed for added tokens with single_word (error {})", error);
  }
  ~Context() { pcre2_code_free(word); }
  bool begins_with_word_character(std::string_view text) const {
    std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    return pcre2_match(word, reinterpret_cast<PCRE2_SPTR>(text.data()), std::min<size_t>(text.size(), 4), 0, PCRE2_NO_UTF_CHECK,
                       match.get(), nullptr) > 0;
  }
};

AddedTokenMatcher::AddedTokenMatcher() = default;
AddedTokenMatcher::~AddedTokenMatcher() = default;
AddedTokenMatcher::AddedTokenMatcher(AddedTokenMatcher&&) noexcept = default;
AddedTokenMatcher& AddedTokenMatcher::operator=(AddedTokenMatcher&&) noexcept = default;

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t t = 0; t < tokens_.size(); ++t) {
    int32_t node = 0;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[node].children;
        children.insert(std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, int32_t>(byte, 0)), {byte, next});
      }
      node = next;
    }
    if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(t);
    first_[static_cast<uint8_t>(tokens_[t].content[0])] = true;
    if (tokens_[t].single_word && !context_) context_ = std::make_unique<Context>();
  }
  if (nodes_[0].children.size() == 1) single_first_ = nodes_[0].children[0].first;
}

int32_t AddedTokenMatcher::child(int32_t node, uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto found = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, int32_t>(byte, 0));
  return found != children.end() && found->first == byte ? found->second : -1;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, size_t free_from, bool special, Match& match, size_t& resume) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (single_first_ >= 0) {
      const void* hit = std::memchr(text.data() + i, single_first_, text.size() - i);
      if (hit == nullptr) return false;
      i = static_cast<const char*>(hit) - text.data();
    } else if (!first_[static_cast<uint8_t>(text[i])]) {
      continue;
    }
    int32_t node = 0, token = -1;
    size_t end = i;
    for (size_t j = i; j < text.size() && (node = child(node, static_cast<uint8_t>(text[j]))) >= 0; ++j) {
      const int32_t here = nodes_[node].token;
      if (here >= 0 && (special || !tokens_[here].special)) token = here, end = j + 1;
    }
    if (token < 0) continue;
    match = {i, end, tokens_[token].id};
    resume = end;
    if (accepts(text, match, tokens_[token], free_from)) return true;
    i = end - 1;  // a rejected occurrence is skipped entirely
  }
  return false;
}

// Checks single_word, then extends the match over the white space that the token strips.
bool AddedTokenMatcher::accepts(std::string_view text, Match& match, const AddedToken& token, size_t free_from) const {
  if (token.single_word) {
    if (match.begin > 0 && context_->begins_with_word_character(text.substr(previous_character(text, match.begin)))) return false;
    if (match.end < text.size() && context_->begins_with_word_character(text.substr(match.end))) return false;
  }
  while (token.lstrip && match.begin > free_from) {
    const size_t previous = previous_character(text, match.begin);
    size_t position = previous;
    if (!is_white_space(next_code_point(text, position))) break;
    match.begin = previous;
  }
  match.begin = std::max(match.begin, free_from);
  while (token.rstrip && match.end < text.size()) {
    size_t position = match.end;
    if (!is_white_space(next_code_point(text, position))) break;
    match.end = position;
  }
  return true;
}

}  // namespace halftone
