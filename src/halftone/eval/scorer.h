#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/data/tokenizer.h"

namespace halftone::eval {

// Requests to a model in lm-evaluation-harness's forms.
struct Continuation {
  std::string context, continuation;
};
struct Prompt {
  std::string context;
  std::vector<std::string> until;
  int64_t max_new_tokens = 256;
};
struct LogLikelihood {
  double value = 0;     // nats
  bool greedy = false;  // each token has the largest logit
};

// A model that answers. Answers stand in the order of the questions.
class Scorer {
 public:
  virtual ~Scorer() = default;
  // For each continuation behind its context. `greedy`: whether the field of that name is read.
  virtual std::vector<LogLikelihood> continuations(std::span<const Continuation> asked, bool greedy) = 0;
  // For whole texts: every token behind as many earlier ones as fit.
  virtual std::vector<double> texts(std::span<const std::string> asked) = 0;
  // The likeliest tokens as text, up to one of the strings or the end of the text, which are left out.
  virtual std::vector<std::string> generations(std::span<const Prompt> asked) = 0;
};

// Ids that are given and ids that are judged. Neither is empty.
struct TokenPair {
  std::vector<int32_t> context, continuation;
};

// The split of lm-evaluation-harness: blanks at the end of the context belong to the continuation; both are encoded together, and the
// first tokens, as many as the context alone has, are its. An empty context is one prefix token: BOS, or EOS without one. Error for a
// continuation without tokens and for a tokenizer with neither token where one is needed.
TokenPair split_tokens(const Tokenizer& tokenizer, const Continuation& asked);
// At most `longest` tokens before the last one: the first ones of a longer pair are left out. Error if the continuation is longer.
TokenPair cut(TokenPair pair, int64_t longest);
// A text's ids in windows: the first one predicts `longest` tokens behind the prefix token, the others as many new tokens behind one
// (context length 1); the last one has fewer and the longest context.
std::vector<TokenPair> rolling_windows(std::span<const int32_t> ids, int32_t prefix, int64_t longest);
// BOS, or EOS without one.
int32_t prefix_token(const Tokenizer& tokenizer);
// With the tokenizer's special tokens; without, if the text begins with the prefix token's.
std::vector<int32_t> encode_context(const Tokenizer& tokenizer, const std::string& text);

}  // namespace halftone::eval
