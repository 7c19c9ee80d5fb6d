#include "halftone/train/generate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/unicode.h"
#include "halftone/ops/device.h"
#include "halftone/train/engine.h"
#include "halftone/train/run_state.h"
#include "halftone/train/saved_model.h"

namespace halftone {
namespace {

// Bytes that can be printed: complete characters, or everything if the rest cannot become a valid character.
size_t printable_prefix(std::string_view text) {
  constexpr size_t kLongestCharacter = 4;
  const size_t valid = valid_utf8_prefix(text);
  return text.size() - valid < kLongestCharacter ? valid : text.size();
}

}  // namespace

GenerateResult generate(const GenerateOptions& o, const std::function<void(std::string_view)>& emit) {
  check(o.max_new_tokens > 0, "--max-new-tokens: expected a positive number, found {}", o.max_new_tokens);
  check_sampling(o.sampling);
  const std::filesystem::path folder = resolve_checkpoint(o.checkpoint);
  const LoadedStep step = LoadedStep::open(folder, true);
  const Tokenizer tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);
  JobConfig config = config_of(step);
  if (!o.dtype.empty()) config.training.mixed_precision_param = o.dtype;
  std::vector<int32_t> prompt = tokenizer.encode_document(o.prompt, true, false, true);
  check(!prompt.empty(), "--prompt: the text is empty and the tokenizer has no begin-of-text token; give some text");

  Engine::Options options;
  options.device = select_device(o.device, 0), options.trainable = false;
  options.positions = static_cast<int64_t>(prompt.size()) + o.max_new_tokens;
  Engine engine(config, options);
  GenerateResult result;
  result.stored = stored_dtype(step), result.computed = config.training.mixed_precision_param;
  const Stopwatch loading;
  restore_model(engine, step);
  result.load_seconds = loading.seconds(), result.load_gib = peak_memory(options.device).reserved_gib;
  check(engine.size().vocab >= tokenizer.vocab_size(),
        "the tokenizer has {} entries, the model's vocabulary {}; pass the model's tokenizer with --tokenizer", tokenizer.vocab_size(),
        engine.size().vocab);

  std::vector<int64_t> ends = saved_token_ids(step).eos;
  if (tokenizer.eos_id()) ends.push_back(*tokenizer.eos_id());
  std::vector<KvCache> caches = engine.model().make_caches(1, options.positions);
  const Stopwatch watch;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  std::vector<int64_t> feed(prompt.begin(), prompt.end());
  std::string pending;
  while (result.new_tokens < o.max_new_tokens) {
    const at::Tensor tokens = at::tensor(feed, at::kLong).view({1, static_cast<int64_t>(feed.size())}).to(options.device);
    const at::Tensor logits = engine.model().next_token_logits(tokens, caches).cpu().contiguous();
    // Ids beyond the tokenizer's vocabulary have no text.
    const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<size_t>(tokenizer.vocab_size()));
    const int64_t id = sample_token(row, o.sampling, static_cast<uint64_t>(result.prompt_tokens + result.new_tokens));
    if (result.new_tokens == 0) emit(o.prompt);
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
