#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"

namespace halftone {

// Random numbers as a function of (key, element index): element i takes word i & 3 of Philox group i >> 2 (step = `draw`),
// w, as the uniform number (w + 1/2) / 2^32. Normal numbers go through the inverse distribution function, evaluated in
// fp64 with separately rounded additions, multiplications, divisions and square roots, hence the same bits on every
// machine, instruction set and thread count, and for every way of cutting a tensor into shards.
struct RandomFill {
  PhiloxKey key{};           // philox_key(seed, fqn + "#init")
  uint64_t first_index = 0;  // element index of out[0] in the unsharded tensor
  uint32_t draw = 0;
  int64_t count = 0;
  DType dtype = DType::f32;  // f32 or bf16 (the fp32 number rounded to nearest even)
  void* out = nullptr;
};
// In [low, high), before a rounding to bf16.
void fill_uniform(const RandomFill& p, double low, double high);
void fill_normal(const RandomFill& p, double mean, double std);
// Normal with mean and std cut at the absolute values low and high (not multiples of std). Error unless std > 0 and
// low < high, or if less than 1e-12 of the mass lies between them.
void fill_truncated_normal(const RandomFill& p, double mean, double std, double low, double high);

// Quantile of the standard normal distribution for 0 < p < 1 (the algorithm of Wichura, AS 241, 1988).
double normal_quantile(double p);
// Standard normal distribution function, absolute error below 5e-14.
double normal_cdf(double x);

}  // namespace halftone
