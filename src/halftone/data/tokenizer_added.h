#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/data/tokenizer_json.h"

namespace halftone {

// Finds added tokens in text: leftmost first, the longest at equal starts.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, end;  // bytes consumed from the text, including white space of lstrip and rstrip
    int32_t id;
  };
  AddedTokenMatcher();
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  ~AddedTokenMatcher();
  AddedTokenMatcher(AddedTokenMatcher&&) noexcept;
  AddedTokenMatcher& operator=(AddedTokenMatcher&&) noexcept;

  bool empty() const { return tokens_.empty(); }
  // The first match in `text` whose token begins at `from` or later; false if there is none. White space is stripped back to `free_from`
  // at most. `resume` is where the next search starts. Without `special`, special tokens are skipped.
  bool find(std::string_view text, size_t from, size_t free_from, bool special, Match& match, size_t& resume) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;  // sorted by byte
    int32_t token = -1;                                 // index into tokens_
  };
  int32_t child(int32_t node, uint8_t byte) const;
  bool accepts(std::string_view text, Match& match, const AddedToken& token, size_t free_from) const;

  struct Context;  // checks the characters around a token
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> first_{};
  int single_first_ = -1;  // the only possible first byte, for memchr
  std::unique_ptr<Context> context_;
};

}  // namespace halftone
