#pragma once
#include <functional>

#include "halftone/eval/run.h"
#include "halftone/eval/scorer.h"
#include "halftone/train/engine.h"
#include "halftone/train/processes.h"

namespace halftone {

struct ScorerOptions {
  int64_t max_length = 0;              // tokens that the model reads at most; 0: those of the engine
  int64_t batch_tokens = 0;            // of a pass on one rank; 0: 4096 on a CPU, 32768 on a GPU
  std::vector<int64_t> ends;           // ids that end a generated text
  bool share_prefixes = true;          // computes the context of several continuations once, where that saves time
  std::function<void(double)> report;  // gets the share that is done
};

// The work of the scorer so far.
struct ScorerWork {
  int64_t asked = 0;     // tokens of contexts and continuations, one by one
  int64_t computed = 0;  // tokens of the passes, without padding: less, where continuations shared their context
  double seconds = 0;
};

// An engine that answers the questions of tasks. Log-likelihoods come from its forward pass as in validation, on any mesh: requests are
// packed into rows, best fit first, and the rows are dealt to the data-parallel ranks. All ranks ask the same and get all answers. In which
// row a request lies changes its result by no more than float rounding in formats that quantise row by row.
class EngineScorer : public eval::Scorer {
 public:
  // processes: null for one process.
  EngineScorer(Engine& engine, const Tokenizer& tokenizer, ScorerOptions options, Processes* processes = nullptr);

  std::vector<eval::LogLikelihood> continuations(std::span<const eval::Continuation> asked, bool greedy) override;
  std::vector<double> texts(std::span<const std::string> asked) override;
  // Needs a process alone: Error on a mesh.
  std::vector<std::string> generations(std::span<const eval::Prompt> asked) override;
  std::vector<eval::LogLikelihood> score(std::vector<eval::TokenPair> pairs, bool greedy);
  // Error unless a prompt has room beside as many generated tokens.
  void check_room(int64_t max_new_tokens) const;
  // The errors that these questions would end in, before any is computed.
  void check_questions(const std::vector<eval::PreparedTask>& tasks);
  const ScorerWork& work() const { return work_; }
  int64_t max_length() const { return max_length_; }

 private:
  struct Item;
  struct Layout;
  Layout lay_out(const std::vector<eval::TokenPair>& pairs) const;
  std::vector<MicroBatch> rows_of(const Layout& layout, const std::vector<eval::TokenPair>& pairs, int64_t first, int64_t count) const;
  void generate(std::span<const eval::Prompt> asked, std::span<const std::vector<int32_t>> prompts, std::span<const size_t> order,
                std::vector<std::string>& answers);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  ScorerOptions options_;
  Processes* processes_;
  int64_t max_length_, batch_tokens_, least_saving_;
  ScorerWork work_;
  bool only_checks_ = false;  // answers nothing
};

}  // namespace halftone
