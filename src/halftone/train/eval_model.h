#pragma once
#include <memory>
#include <string>

#include "halftone/train/engine_scorer.h"
#include "halftone/train/inference.h"

namespace halftone {

struct EvalModelOptions : InferenceOptions {
  ScorerOptions scorer;  // max_length 0: as many positions as the model has
};

// A checkpoint's model, ready to answer questions.
class EvalModel {
 public:
  // processes: null, or those that compute together, connected by this call.
  explicit EvalModel(const EvalModelOptions& options, Processes* processes = nullptr);
  const Tokenizer& tokenizer() const { return tokenizer_; }
  Engine& engine() { return *engine_; }
  EngineScorer& scorer() { return *scorer_; }
  // How the weights are stored and multiplied, for the log.
  const std::string& products() const { return products_; }

 private:
  Tokenizer tokenizer_;
  std::string products_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineScorer> scorer_;
};

// The log-probability of each token of a text behind those before it.
struct TokenLogprobs {
  std::vector<int32_t> ids;                                 // the first one is given: BOS, or the text's first token without one
  std::vector<float> logprobs;                              // of ids[1], ids[2], ...
  std::vector<int64_t> ranks;                               // with `top`: 1 for the likeliest
  std::vector<std::vector<std::pair<int64_t, float>>> top;  // with `top`: the likeliest ids, descending
};
// One pass. Error for a text of more tokens than the model reads, or of fewer than two.
TokenLogprobs token_logprobs(EvalModel& model, const std::string& text, int64_t top);

}  // namespace halftone
