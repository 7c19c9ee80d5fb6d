#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/fused/normal_quantile.h"

namespace halftone {

// Maps uniform u in (0, 1), on the host and on a device: mean + std z clamped to [low, high], where z is the standard normal quantile at
// first + mass u, or u itself.
struct RandomValues {
  bool normal = true;
  double first = 0, mass = 1;  // range of the distribution function between the truncation bounds
  double mean = 0, std = 1;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();

  constexpr double probability(double u) const { return std::clamp(first + mass * u, 0x1p-60, 1 - 0x1p-53); }
  constexpr double scaled(double z) const { return std::clamp(mean + std * z, low, high); }
  constexpr double operator()(double u) const { return scaled(normal ? normal_quantile(probability(u)) : u); }
};
// In [low, high), before rounding to bf16.
RandomValues uniform_values(double low, double high);
RandomValues normal_values(double mean, double std);
// Normal with mean and std, truncated to [low, high] (absolute values, not multiples of std). Throws Error unless std > 0 and low < high,
// or if less than 1e-12 of the mass lies between them.
RandomValues truncated_normal_values(double mean, double std, double low, double high);

// Random numbers as a function of (key, element index): element i uses word i & 3 of Philox group i >> 2 (step = `draw`) as a uniform
// number. Everything is evaluated in fp64 with separately rounded additions, multiplications, divisions and square roots: bit-identical on
// every machine, device, instruction set and thread count, and for every sharding of the tensor.
struct RandomFill {
  PhiloxKey key{};           // philox_key(seed, fqn + "#init")
  uint64_t first_index = 0;  // element index of out[0] in the unsharded tensor
  uint32_t draw = 0;
  int64_t count = 0;
  DType dtype = DType::f32;  // f32 or bf16 (the fp32 number rounded to nearest even)
  void* out = nullptr;
  RandomValues values{};
};
void random_fill(const RandomFill& p);

constexpr double unit_double(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// Standard normal distribution function, absolute error below 5e-14.
double normal_cdf(double x);

}  // namespace halftone
