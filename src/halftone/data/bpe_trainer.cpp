#include "halftone/data/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/data/bpe_hash.h"
#include "halftone/data/bpe_word_count.h"
#include "halftone/data/tokenizer_added.h"
#include "halftone/data/tokenizer_json.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

// Counts of adjacent pairs over all words, kept up to date while pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(const std::vector<WordCount>& words) {
    size_t symbols = 0;
    for (const auto& [text, count] : words) symbols += text.size();
    check(symbols < UINT32_MAX && words.size() < UINT32_MAX, "{} bytes of distinct words: expected less than 4 GiB; train on less text",
          symbols);
    symbols_.reserve(symbols);
    words_.reserve(words.size());
    for (const auto& [text, count] : words) {
      const auto word = static_cast<uint32_t>(words_.size());
      words_.push_back({static_cast<uint32_t>(symbols_.size()), static_cast<uint32_t>(text.size()), count});
      for (size_t i = 0; i < text.size(); ++i) {
        symbols_.push_back(static_cast<uint8_t>(text[i]));
        if (i > 0) add(static_cast<uint8_t>(text[i - 1]), static_cast<uint8_t>(text[i]), count, word);
      }
    }
    queue_touched();
  }

  struct Best {
    int64_t count = 0;
    int32_t left = 0, right = 0;
    bool operator<(const Best& other) const {  // for the queue: the greatest is first
      if (count != other.count) return count < other.count;
      return left != other.left ? left > other.left : right > other.right;
    }
  };
  // The pair to merge next; count 0 if there is none. Queue entries may be stale, but only too high: a pair's count grows only in the
  // round that creates its newer symbol, and it is queued at the end of that round.
  Best best() {
    while (!queue_.empty()) {
      Best top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_.find(key(top.left, top.right))->count;
      if (count == top.count) return top;
      if (count > 0) queue_.push({count, top.left, top.right});
    }
    return {};
  }

  // Replaces the pair by `symbol` in every word.
  void merge(int32_t left, int32_t right, int32_t symbol) {
    const uint64_t merged = key(left, right);
    const std::vector<uint32_t> affected = std::move(occurrences_[pairs_[merged].words]);
    for (const uint32_t index : affected) {
      Word& word = words_[index];
      int32_t* s = symbols_.data() + word.begin;
      uint32_t kept = 0;
      for (uint32_t i = 0; i < word.length; ++i) {
        if (i + 1 == word.length || s[i] != left || s[i + 1] != right) {
          s[kept++] = s[i];
          continue;
        }
        if (kept > 0) {
          pairs_[key(s[kept - 1], left)].count -= word.count;
          add(s[kept - 1], symbol, word.count, index);
        }
        if (i + 2 < word.length) {
          pairs_[key(right, s[i + 2])].count -= word.count;
          add(symbol, s[i + 2], word.count, index);
        }
        s[kept++] = symbol;
        ++i;
      }
      word.length = kept;
    }
    pairs_[merged].count = 0;
    queue_touched();
  }

 private:
  struct Word {
    uint32_t begin, length;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    int32_t words = -1;  // index into occurrences_
    bool touched = false;
  };
  static uint64_t key(int32_t left, int32_t right) { return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right); }

  void add(int32_t left, int32_t right, int64_t count, uint32_t word) {
    Pair& pair = pairs_[key(left, right)];
    pair.count += count;
    if (pair.words < 0) {
      pair.words = static_cast<int32_t>(occurrences_.size());
      occurrences_.emplace_back();
    }
    if (!pair.touched) {
      pair.touched = true;
      touched_.emplace_back(left, right);
    }
    std::vector<uint32_t>& list = occurrences_[pair.words];
    if (list.empty() || list.back() != word) list.push_back(word);
  }

  void queue_touched() {
    for (const auto& [left, right] : touched_) {
      Pair& pair = pairs_[key(left, right)];
      pair.touched = false;
      if (pair.count > 0) queue_.push({pair.count, left, right});
    }
    touched_.clear();
  }

  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  FlatMap<Pair> pairs_;
  std::vector<std::vector<uint32_t>> occurrences_;
  std::vector<std::pair<int32_t, int32_t>> touched_;
  std::priority_queue<Best> queue_;
};

bool is_special(const BpeTrainerOptions& options, const std::string& name) { return std::ranges::count(options.special_tokens, name) > 0; }

void check_options(const BpeTrainerOptions& options) {
  const auto specials = static_cast<int64_t>(options.special_tokens.size());
  check(options.vocab_size >= 256 + specials && options.vocab_size <= (1 << 24),
        "a vocabulary of {} entries: expected at least {} (256 bytes and {} special tokens) and at most {}", options.vocab_size,
        256 + specials, specials, 1 << 24);
  for (size_t i = 0; i < options.special_tokens.size(); ++i) {
    const std::string& token = options.special_tokens[i];
    check(token.size() >= 2 && is_valid_utf8(token), "the special token '{}' must be UTF-8 of at least two bytes",
          replace_invalid_utf8(token));
    for (size_t k = 0; k < i; ++k) check(options.special_tokens[k] != token, "the special token '{}' is given twice", token);
  }
  const BpeTrainerOptions unset;
  for (const std::string& name : {options.bos_token, options.eos_token}) {
    check(is_special(options, name) || name.empty() || name == unset.bos_token || name == unset.eos_token,
          "the token '{}' begins or ends documents, but is none of the special tokens; name it among them", name);
  }
}

// Yields the documents split at special tokens, which are dropped.
class Between {
 public:
  Between(const std::function<bool(std::string&)>& next_document, const std::vector<std::string>& special_tokens)
      : next_document_(next_document), matcher_(added(special_tokens)) {}
  bool operator()(std::string& text) {
    while (at_ == document_.size()) {
      if (!next_document_(document_)) return false;
      at_ = 0;
    }
    AddedTokenMatcher::Match match{document_.size(), document_.size(), 0};
    size_t resume = 0;
    if (!matcher_.empty()) matcher_.find(document_, at_, at_, true, match, resume);
    text = document_.substr(at_, match.begin - at_);
    at_ = match.end;
    return true;
  }

 private:
  static std::vector<AddedToken> added(const std::vector<std::string>& names) {
    std::vector<AddedToken> tokens(names.size());
    for (size_t i = 0; i < names.size(); ++i) tokens[i].content = names[i];
    return tokens;
  }
  const std::function<bool(std::string&)>& next_document_;
  AddedTokenMatcher matcher_;
  std::string document_;
  size_t at_ = 0;
};

}  // namespace

Tokenizer train_bpe(const std::function<bool(std::string&)>& next_document, const BpeTrainerOptions& options) {
  check_options(options);
  const int threads = options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  TokenizerSpec spec;
  spec.splits.push_back({std::string(pattern_text(split_pattern_by_name(options.pattern)))});
  Between between(next_document, options.special_tokens);
  const std::function<bool(std::string&)> texts =
      options.special_tokens_in_text ? std::function<bool(std::string&)>(std::ref(between)) : next_document;
  const std::vector<WordCount> words = count_words(texts, Pretokenizer(spec.splits), threads, options.progress);
  check(!words.empty(), "no text to learn a vocabulary from: expected documents with words of two bytes or more");

  for (int b = 0; b < 256; ++b) spec.tokens.emplace_back(1, static_cast<char>(b));
  PairCounts pairs(words);
  const int merges = options.vocab_size - 256 - static_cast<int>(options.special_tokens.size());
  for (int m = 0; m < merges; ++m) {
    const PairCounts::Best best = pairs.best();
    if (best.count < std::max<int64_t>(options.min_frequency, 1)) break;
    const auto id = static_cast<int32_t>(spec.tokens.size());
    spec.merges.push_back({best.left, best.right, id});
    spec.tokens.push_back(spec.tokens[best.left] + spec.tokens[best.right]);
    pairs.merge(best.left, best.right, id);
    if (options.progress && m % 64 == 63) options.progress("merging", (m + 1.0) / merges);
  }
  spec.text_tokens = spec.tokens;
  for (const std::string& content : options.special_tokens) {
    AddedToken token;
    token.content = content;
    token.id = spec.vocab_size();
    token.special = true;
    for (const std::string& text : spec.text_tokens) {
      check(text != content, "the special token '{}' occurs as a word of the text and was learned as a token; choose another name",
            content);
    }
    spec.tokens.push_back(content);
    spec.added.push_back(std::move(token));
  }
  spec.text_tokens.resize(spec.tokens.size());
  spec.bos_token = is_special(options, options.bos_token) ? options.bos_token : "";
  spec.eos_token = is_special(options, options.eos_token) ? options.eos_token : "";
  return Tokenizer::from_spec(spec);
}

}  // namespace halftone
