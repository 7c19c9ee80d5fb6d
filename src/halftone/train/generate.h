#pragma once
#include <functional>
#include <string>

#include "halftone/train/inference.h"
#include "halftone/train/sampling.h"

namespace halftone {

struct GenerateOptions : InferenceOptions {
  std::string prompt;
  int64_t max_new_tokens = 256;
  SamplingOptions sampling;
  int64_t prefill_chunk = 0;  // tokens of the prompt that a pass reads; 0: all
  bool stop_at_end = true;    // at the tokenizer's end-of-text token and those of the model's Hugging Face configuration
};

struct GenerateResult {
  int64_t prompt_tokens = 0, new_tokens = 0;
  double seconds = 0;
  std::string stored, computed;           // types of the weights and of unquantised matrix products
  double load_seconds = 0, load_gib = 0;  // of the weights, after the model was made; peak memory of the device until then
};

// Continues the prompt token by token with a KV cache. `say` gets a line on how the weights are stored and multiplied, then `emit` gets the
// prompt with the first token, so that no output precedes an error, then text as soon as its characters are complete. Special tokens
// spelled out in the prompt are encoded as tokens. processes: null, or those that compute together, connected by this call; only the first
// of them calls `say` and `emit`.
GenerateResult generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit,
                        const std::function<void(const std::string&)>& say = {}, Processes* processes = nullptr);

}  // namespace halftone
