#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace halftone {

struct ConvertOptions {
  std::filesystem::path from;              // Hugging Face folder, or a run's folder or step
  std::filesystem::path to;                // must not exist, or be empty
  std::optional<c10::ScalarType> dtype{};  // of floating-point weights; none: each keeps its own, and codes become bfloat16
  std::string format{};                    // weights as codes: a name of train/export_formats.h
  std::string codes{};                     // with `format`: the form of all of them
  int64_t max_shard_bytes = 0;             // 0: the shards of the weights' original Hugging Face folder, or 5 GiB without one
};

struct ConvertResult {
  bool to_hf = false;
  bool same_numbers = true;  // no weight was rounded to another type, decoded or dropped
  int64_t tensors = 0, bytes = 0;
  double seconds = 0;
};

// Writes the weights of `from` to `to` in the other layout, or in `format`, a few MiB at a time, with the tokenizer's files. On failure
// `to` is unchanged.
ConvertResult convert(const ConvertOptions& options);

// Difference between the logits of two checkpoints of one model: both in fp32 on the CPU, one after the other, on the same tokens.
struct LogitsDifference {
  double largest = 0, magnitude = 0;  // of a difference; of the first model's logits
  double divergence = 0;              // KL of the second from the first, mean over the compared positions, nats
  bool finite = true;
};
LogitsDifference compare_logits(const std::filesystem::path& first, const std::filesystem::path& second);

}  // namespace halftone
