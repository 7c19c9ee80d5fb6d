#pragma once
#include <ATen/Functions.h>

#include <filesystem>
#include <string>
#include <vector>

#include "halftone/config/load.h"
#include "halftone/train/engine.h"
#include "source_dir.h"

namespace halftone {

// Training rows of a small Llama: two blocks of 64 columns, vocabulary 256, 64 positions.
constexpr int64_t kSmallVocabulary = 256, kSmallPositions = 64;

inline JobConfig small_config(std::vector<std::string> more, int64_t processes = 1) {
  std::vector<std::string> args = {
      "--config", (std::filesystem::path(source_dir()) / "recipes/demo.toml").string(),
      R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":1,"ffn_dim":192,"vocab_size":256})"};
  args.insert(args.end(), more.begin(), more.end());
  return load_config(args, {processes}).config;
}

inline Engine::Options small_options() {
  Engine::Options options;
  options.seed = 3, options.vocab_size = kSmallVocabulary, options.positions = kSmallPositions;
  return options;
}

// The micro-batches of one step: random rows from the generator.
inline std::vector<MicroBatch> small_step() {
  std::vector<MicroBatch> batches(2);
  for (size_t b = 0; b < batches.size(); ++b) {
    const at::Tensor tokens = at::randint(kSmallVocabulary, {2, kSmallPositions + 1}, at::kLong);
    batches[b].input.tokens = tokens.narrow(1, 0, kSmallPositions).contiguous();
    batches[b].labels = tokens.narrow(1, 1, kSmallPositions).contiguous();
    batches[b].valid_labels = 2 * kSmallPositions, batches[b].first_row = batches[b].valid_labels * static_cast<int64_t>(b);
  }
  return batches;
}

}  // namespace halftone
