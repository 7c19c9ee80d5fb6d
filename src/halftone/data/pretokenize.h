#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// The splitting patterns of GPT-2, Llama 3 and Qwen 2, as Hugging Face tokenizer.json files write them.
enum class SplitPattern { gpt2, llama3, qwen2, other };
std::string_view pattern_text(SplitPattern pattern);
// By name ("gpt2", "llama3", "qwen2"); Error for another name.
SplitPattern split_pattern_by_name(std::string_view name);

// What becomes of a match of the pattern: `isolated`: matches and the text between them are pieces each; `removed`: matches are
// dropped; `contiguous`: as isolated, neighbouring matches joined. `invert` swaps matches and the text between.
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

// Cuts text into the pieces inside which byte pairs are merged. Steps are applied one after another, each to the pieces of the
// one before. A single isolated step with one of the three known patterns takes a hand-written path for ASCII and asks
// PCRE2 for the pieces that touch other characters; the result is the same (tests/data/tokenizer_pretokenize_test.cpp).
class Pretokenizer {
 public:
  explicit Pretokenizer(std::vector<SplitStep> steps);  // Error when a pattern does not compile
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  // Working memory of one thread.
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

  // Appends the pieces of `text` (well-formed UTF-8) to `pieces`, in order. Error when a pattern needs more than PCRE2's match limit.
  void split(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;
  // The same with PCRE2 alone.
  void split_by_pcre2(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;

  // A place at `from` (>= 1) or later where `text` can be taken apart: the pieces of both parts are those of the whole. The end of the text
  // where none is known, as for patterns that are not (other).
  size_t next_cut(std::string_view text, size_t from) const;

  SplitPattern pattern() const { return pattern_; }

 private:
  struct Compiled;
  void split_known(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const;
  std::vector<Compiled> steps_;
  SplitPattern pattern_ = SplitPattern::other;
};

}  // namespace halftone
