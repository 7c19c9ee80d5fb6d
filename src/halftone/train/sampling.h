#pragma once
#include <cstdint>
#include <span>

namespace halftone {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the largest logit (the lowest id among equals)
  int64_t top_k = 0;         // 0: all; keeps the k largest
  double top_p = 1.0;        // keeps the smallest set of largest probabilities whose sum reaches top_p, after top_k
  uint64_t seed = 0;
};

// Error when an option is out of its range.
void check_sampling(const SamplingOptions& options);

// Samples a token from logits [V]; a pure function of its arguments: the uniform number is Philox keyed by the seed and "sample", at
// counter `position`. Equal logits are ordered by id. Error if logits is empty or contains a NaN, or an option is out of range; a logit
// of -inf is never sampled.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position);

}  // namespace halftone
