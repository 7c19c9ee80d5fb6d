#include "halftone/train/eval_model.h"

#include <ATen/ops/tensor.h>

#include "halftone/base/error.h"
#include "halftone/models/registry.h"
#include "halftone/ops/device.h"
#include "halftone/train/run_state.h"
#include "halftone/train/saved_model.h"
#include "halftone/train/stored_products.h"

namespace halftone {

EvalModel::EvalModel(const EvalModelOptions& o, Processes* processes)
    : tokenizer_(Tokenizer::load(o.tokenizer.empty() ? resolve_checkpoint(o.checkpoint) : o.tokenizer)) {
  const LoadedStep step = LoadedStep::open(resolve_checkpoint(o.checkpoint), true);
  JobConfig config = inference_config(step, o);
  config.parallelism = o.parallelism;
  const int64_t most = build_model(config.model, 0).model->size().max_seq_len;
  ScorerOptions scorer = o.scorer;
  check(scorer.max_length >= 0 && scorer.max_length <= most, "--max-length: expected at most the {} positions of the model, found {}", most,
        scorer.max_length);

  // Ranks share the positions of a row only where that leaves none over.
  const int64_t positions = scorer.max_length > 0 ? scorer.max_length : most;
  ParallelismConfig& p = config.parallelism;
  p.enable_sequence_parallel = p.enable_sequence_parallel && positions % p.tensor_parallel_degree == 0;
  Engine::Options options = inference_engine(config, o.device, processes);
  options.positions = positions;
  engine_ = std::make_unique<Engine>(config, options);
  engine_->enter_phase_of(step.step());
  restore_model(*engine_, step);
  products_ = multiply_as_stored(*engine_, step, config.training.mixed_precision_param, o.recipe);

  scorer.ends = saved_token_ids(step).eos;
  if (tokenizer_.eos_id()) scorer.ends.push_back(*tokenizer_.eos_id());
  scorer_ = std::make_unique<EngineScorer>(*engine_, tokenizer_, std::move(scorer), processes);
}

TokenLogprobs token_logprobs(EvalModel& model, const std::string& text, int64_t top) {
  Engine& engine = model.engine();
  TokenLogprobs result;
  result.ids = eval::encode_context(model.tokenizer(), text);
  const auto count = static_cast<int64_t>(result.ids.size()), most = model.scorer().max_length();
  check(count >= 2, "expected a text of at least two tokens, of which the first is given; found {}", count);
  check(count - 1 <= most, "a text of {} tokens is longer than the {} that the model reads; split it", count, most);
  check(top >= 0 && top <= engine.size().vocab, "--top-k: expected at most the {} ids of the vocabulary, found {}", engine.size().vocab,
        top);
  const at::Tensor ids = at::tensor(std::vector<int64_t>(result.ids.begin(), result.ids.end()), at::kLong).view({1, count});
  MicroBatch b;
  b.input.tokens = ids.narrow(1, 0, count - 1).to(engine.device()), b.labels = ids.narrow(1, 1, count - 1).to(engine.device());
  b.input.step.scores = std::make_shared<RowScores>();
  b.input.step.scores->top = top;
  engine.evaluate(b);
  const RowScores& scores = *b.input.step.scores;
  const at::Tensor loss = scores.loss.cpu();
  for (int64_t t = 0; t + 1 < count; ++t) result.logprobs.push_back(-loss.const_data_ptr<float>()[t]);
  if (top == 0) return result;
  const at::Tensor rank = scores.rank.cpu(), values = scores.top_logprobs.cpu().contiguous(), best = scores.top_ids.cpu().contiguous();
  for (int64_t t = 0; t + 1 < count; ++t) {
    result.ranks.push_back(rank.const_data_ptr<int64_t>()[t]);
    auto& list = result.top.emplace_back();
    for (int64_t k = t * top; k < (t + 1) * top; ++k)
      list.emplace_back(best.const_data_ptr<int64_t>()[k], values.const_data_ptr<float>()[k]);
  }
  return result;
}

}  // namespace halftone
