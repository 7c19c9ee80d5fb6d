#pragma once
#include <cstdint>
#include <vector>

#include "halftone/base/dtype.h"

namespace halftone {

enum class RopePairing {
  neighbours,  // (2j, 2j+1): Llama 3, DeepSeek V3
  halves,      // (j, j + d/2), d: rotated elements: Qwen3, GPT-OSS, Hugging Face's permuted Llama weights
};

// Frequency scaling for contexts longer than the original training context (platform.md 4.5). Wavelengths are given in turns over the
// original context:
//   none     unscaled
//   linear   all divided by `factor` (Chen et al. 2023)
//   llama3   divided below `low_freq_factor` turns, unscaled above `high_freq_factor`, interpolated in between
//   yarn     likewise between `beta_slow` and `beta_fast` turns, but interpolated over the index, whose bounds are rounded outwards
//            with `truncate`; cos and sin times `attention_factor` (Peng et al. 2023)
//   dynamic  theta grows with the length of the row once it exceeds the original context (bloc97, NTK-aware)
struct RopeScaling {
  enum class Type { none, linear, llama3, yarn, dynamic } type = Type::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4, beta_fast = 32, beta_slow = 1, attention_factor = 1;
  bool truncate = true;
  int64_t original_context = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// f_j = theta^(-2j/d), j = 0 .. d/2-1, scaled, evaluated in fp64; only Type::dynamic uses `length`, the length of the row. Throws Error
// unless head_dim is even and positive and theta > 0.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling = {}, int64_t length = 0);

// cos and sin of position * frequency, each [positions, d/2] row-major. Frequency and angle are rounded to fp32 (as in the reference
// models); cos and sin are evaluated in fp64 and rounded once. d: rotated elements of a head.
struct RopeTable {
  int64_t positions = 0, half_dim = 0;
  std::vector<float> cos, sin;
};
RopeTable rope_table(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling = {});

// Rotates `heads` adjacent heads of every token: x [T, heads, d], out likewise (may be x). Backward is the same call with inverse = true.
// Adjacent q and k of a fused projection are rotated in one call. Computed in fp32, rounded once.
struct Rope {
  int64_t tokens = 0, heads = 0, head_dim = 0;
  DType dtype = DType::bf16;  // bf16 or f32
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements between tokens; heads are contiguous
  void* out = nullptr;
  int64_t out_stride = 0;
  const float* cos = nullptr;  // [max_positions, rotated/2]
  const float* sin = nullptr;
  int64_t max_positions = 0;
  const int32_t* positions = nullptr;  // [T], or null: position = t % seq_len + offset
  int64_t seq_len = 0, offset = 0;
  RopePairing pairing = RopePairing::neighbours;
  bool inverse = false;
  int64_t rotated = 0;  // the first `rotated` elements of a head are rotated, the rest is copied; 0: all
};
// Throws Error if a position is outside the table.
void rope(const Rope& p);
void check_rope(const Rope& p);  // the same check for fused kernels with a rotation
constexpr int64_t rotated_of(const Rope& p) { return p.rotated > 0 ? p.rotated : p.head_dim; }

}  // namespace halftone
