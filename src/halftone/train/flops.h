#pragma once
#include <cstdint>
#include <string_view>

#include "halftone/nn/model.h"

namespace halftone {

// Forward and backward of a decoder (platform.md 4.8): 6 * (N - N_embedding) + 6 * L * heads * (qk_dim + v_dim) * seq_len with N the
// active parameters; no causal discount, no recomputation. A tied head's GEMM counts, and a windowed layer attends to at most seq_len.
double flops_per_token(const nn::ModelSize& model, int64_t seq_len);

double tflops(double flops_per_token, double tokens_per_second);
double mfu_percent(double flops_per_token, double tokens_per_second, double peak_flops);

// Dense bf16 peak by device name; `known` is false if no name matches (312e12, the caller warns).
struct PeakFlops {
  double bf16 = 312e12;
  bool known = false;
};
PeakFlops peak_flops(std::string_view device_name);

}  // namespace halftone
