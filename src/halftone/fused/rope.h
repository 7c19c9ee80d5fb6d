#pragma once
#include <cstdint>
#include <vector>

#include "halftone/base/dtype.h"

namespace halftone {

enum class RopePairing {
  neighbours,  // (2j, 2j+1): Llama 3, DeepSeek V3
  halves,      // (j, j + d/2): Qwen3, GPT-OSS, Hugging Face's permuted Llama weights
};

// Llama 3 frequency scaling (platform.md 4.5); factor 1 leaves every frequency as it is.
struct RopeScaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;
};

// f_j = theta^(-2j/d), j = 0 .. d/2-1, scaled, evaluated in fp64. Error unless head_dim is even and positive, theta > 0.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling = {});

// cos and sin of position * frequency, each [positions, d/2] row-major. Frequency and angle are rounded to fp32 (as the
// reference models do), their cosine and sine are evaluated in fp64 and rounded once.
struct RopeTable {
  int64_t positions = 0, half_dim = 0;
  std::vector<float> cos, sin;
};
RopeTable rope_table(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling = {});

// Rotates `heads` adjacent heads of every token: x [T, heads, d], out likewise (may be x). Backward is the same call with
// inverse = true. q and k that lie side by side in one fused projection are rotated together. Fp32 inside, one rounding.
struct Rope {
  int64_t tokens = 0, heads = 0, head_dim = 0;
  DType dtype = DType::bf16;  // bf16 or f32
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements from token to token; heads are contiguous
  void* out = nullptr;
  int64_t out_stride = 0;
  const float* cos = nullptr;  // [max_positions, d/2]
  const float* sin = nullptr;
  int64_t max_positions = 0;
  const int32_t* positions = nullptr;  // [T], or null: position = t % seq_len + offset
  int64_t seq_len = 0, offset = 0;
  RopePairing pairing = RopePairing::neighbours;
  bool inverse = false;
};
// Error when a position is outside the table.
void rope(const Rope& p);

}  // namespace halftone
