#include "halftone/train/generate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/unicode.h"
#include "halftone/ops/device.h"
#include "halftone/train/engine.h"
#include "halftone/train/processes.h"
#include "halftone/train/run_state.h"
#include "halftone/train/saved_model.h"
#include "halftone/train/stored_products.h"

namespace halftone {
namespace {

// Bytes that can be printed: complete characters, or everything if the rest cannot become a valid character.
size_t printable_prefix(std::string_view text) {
  constexpr size_t kLongestCharacter = 4;
  const size_t valid = valid_utf8_prefix(text);
  return text.size() - valid < kLongestCharacter ? valid : text.size();
}

// The mesh of the processes: those that no degree names share the rows of weights. A token is one row, which sequence shards cannot split.
ParallelismConfig mesh_of(ParallelismConfig p) {
  check(
      p.pipeline_parallel_degree == 1,
      "parallelism.pipeline_parallel_degree: halftone generate has no pipeline, whose stages would wait for each other at every token; use "
      "tensor_parallel_degree");
  check(p.context_parallel_degree == 1,
        "parallelism.context_parallel_degree: halftone generate does not share the positions of a row; use tensor_parallel_degree");
  check(p.tensor_parallel_degree >= 1 && p.expert_parallel_degree >= 1,
        "parallelism: expected degrees of at least 1, found tensor_parallel_degree {} and expert_parallel_degree {}",
        p.tensor_parallel_degree, p.expert_parallel_degree);
  p.enable_sequence_parallel = false;
  p.expert_tensor_parallel_degree = p.expert_parallel_degree > 1 ? p.tensor_parallel_degree : 1;
  return p;
}

}  // namespace

GenerateResult generate(const GenerateOptions& o, const std::function<void(std::string_view)>& emit_all,
                        const std::function<void(const std::string&)>& say, Processes* processes) {
  check(o.max_new_tokens > 0, "--max-new-tokens: expected a positive number, found {}", o.max_new_tokens);
  check(o.prefill_chunk >= 0, "--prefill-chunk: expected a number of tokens, or 0 for the whole prompt; found {}", o.prefill_chunk);
  check_sampling(o.sampling);
  const std::filesystem::path folder = resolve_checkpoint(o.checkpoint);
  const LoadedStep step = LoadedStep::open(folder, true);
  const Tokenizer tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);
  JobConfig config = inference_config(step, o);
  std::vector<int32_t> prompt = tokenizer.encode_document(o.prompt, true, false, true);
  check(!prompt.empty(), "--prompt: the text is empty and the tokenizer has no begin-of-text token; give some text");

  config.parallelism = mesh_of(o.parallelism);
  const bool first = processes == nullptr || processes->first();
  Engine::Options options = inference_engine(config, o.device, processes);
  options.positions = static_cast<int64_t>(prompt.size()) + o.max_new_tokens;
  Engine engine(config, options);
  GenerateResult result;
  engine.enter_phase_of(step.step());
  result.stored = stored_dtype(step), result.computed = config.training.mixed_precision_param;
  const Stopwatch loading;
  restore_model(engine, step);
  const std::string products = multiply_as_stored(engine, step, result.computed, o.recipe);
  result.load_seconds = loading.seconds(), result.load_gib = peak_memory(options.device).reserved_gib;
  check(engine.size().vocab >= tokenizer.vocab_size(),
        "the tokenizer has {} entries, the model's vocabulary {}; pass the model's tokenizer with --tokenizer", tokenizer.vocab_size(),
        engine.size().vocab);

  std::vector<int64_t> ends = saved_token_ids(step).eos;
  if (tokenizer.eos_id()) ends.push_back(*tokenizer.eos_id());
  std::vector<KvCache> caches = engine.model().make_caches(1, options.positions);
  const Stopwatch watch;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto emit = [&](std::string_view text) {
    if (first) emit_all(text);
  };
  parallel::DataParallel* shards = options.axes != nullptr && options.axes->data().sharded() ? &options.axes->data() : nullptr;
  std::vector<int64_t> feed(prompt.begin(), prompt.end());
  std::string pending;
  while (result.new_tokens < o.max_new_tokens) {
    at::Tensor logits;
    const auto most = o.prefill_chunk > 0 ? static_cast<size_t>(o.prefill_chunk) : feed.size();
    for (size_t at = 0; at < feed.size(); at += most) {
      const auto count = static_cast<int64_t>(std::min(most, feed.size() - at));
      const at::Tensor tokens = at::tensor(at::IntArrayRef(feed).slice(at, static_cast<size_t>(count)), at::kLong).view({1, count});
      logits = engine.model().next_token_logits(tokens.to(options.device), caches, shards);
    }
    logits = logits.cpu().contiguous();
    // Ids beyond the tokenizer's vocabulary have no text.
    const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<size_t>(tokenizer.vocab_size()));
    int64_t id = sample_token(row, o.sampling, static_cast<uint64_t>(result.prompt_tokens + result.new_tokens));
    if (processes != nullptr && processes->many()) id = processes->of_first(id);
    if (result.new_tokens == 0) {
      if (first && say) say(products);
      emit(o.prompt);
    }
    ++result.new_tokens;
    if (o.stop_at_end && std::find(ends.begin(), ends.end(), id) != ends.end()) break;
    pending += tokenizer.token_bytes(static_cast<int32_t>(id));
    const size_t complete = printable_prefix(pending);
    if (complete > 0) {
      emit(replace_invalid_utf8(std::string_view(pending).substr(0, complete)));
      pending.erase(0, complete);
    }
    feed = {id};
  }
  if (!pending.empty()) emit(replace_invalid_utf8(pending));
  result.seconds = watch.seconds();
  return result;
}

}  // namespace halftone
