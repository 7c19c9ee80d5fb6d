#pragma once
#include <cstdint>
#include <string_view>

namespace halftone {

// What the count needs to know of a dense decoder (platform.md 4.8).
struct FlopsModel {
  int64_t parameters = 0;            // N, each tensor counted once
  int64_t embedding_parameters = 0;  // the input table; with a tied head the head's product is counted all the same
  bool tied_embeddings = false;
  int64_t layers = 0, heads = 0;
  int64_t qk_dim = 0, v_dim = 0;  // per head
};
// 6 * (N - N_embedding) + 6 * L * heads * (qk_dim + v_dim) * seq_len, forward and backward; no causal discount,
// recomputation not counted.
double flops_per_token(const FlopsModel& model, int64_t seq_len);

double tflops(double flops_per_token, double tokens_per_second);
double mfu_percent(double flops_per_token, double tokens_per_second, double peak_flops);

// Dense bf16 peak by device name; `known` is false when the name matches nothing (312e12, the caller warns).
struct PeakFlops {
  double bf16 = 312e12;
  bool known = false;
};
PeakFlops peak_flops(std::string_view device_name);

}  // namespace halftone
