#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// The split patterns of GPT-2, Llama 3 and Qwen 2 as in Hugging Face tokenizer.json files.
enum class SplitPattern { gpt2, llama3, qwen2, other };
std::string_view pattern_text(SplitPattern pattern);
// By name ("gpt2", "llama3", "qwen2"); Error for another name.
SplitPattern split_pattern_by_name(std::string_view name);

// How matches become pieces: `isolated`: matches and the text between them are separate pieces; `removed`: matches are dropped;
// `contiguous`: as isolated, with adjacent matches joined. `invert` swaps matches and the text between.
enum class SplitBehavior { isolated, removed, contiguous };
struct SplitStep {
  std::string pattern;   // PCRE2 regular expression, or the text itself
  bool literal = false;  // pattern is the text itself
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
};

struct Range {
  size_t begin, end;
};

// Splits text into the pieces within which byte pairs are merged. Each step is applied to the pieces of the previous one. A single
// isolated step with one of the three known patterns takes a hand-written path for ASCII and uses PCRE2 for pieces with other characters;
// the result is the same (tests/data/tokenizer_pretokenize_test.cpp).
class Pretokenizer {
 public:
  explicit Pretokenizer(std::vector<SplitStep> steps);  // Error if a pattern does not compile
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  // Per-thread working memory.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class Pretokenizer;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Appends the pieces of `text` (well-formed UTF-8) to `pieces`, in order. Error if a pattern exceeds PCRE2's match limit.
  void split(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;
  // The same with PCRE2 only.
  void split_by_pcre2(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;

  // A position >= `from` (>= 1) where `text` can be split: the pieces of both parts are those of the full text. The end of the text if no
  // such position is known, as for unknown patterns (other).
  size_t next_cut(std::string_view text, size_t from) const;

  SplitPattern pattern() const { return pattern_; }

 private:
  struct Compiled;
  void split_known(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;
  std::vector<Compiled> steps_;
  SplitPattern pattern_ = SplitPattern::other;
};

}  // namespace halftone
