#include "halftone/fused/random_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/philox_groups.h"

// Like normal_quantile.h, this file avoids the C library's exp and erfc.
namespace halftone {
namespace {

// Four numbers at once: the same operations on each as on a scalar double.
using Four = double __attribute__((vector_size(32)));

// e^x for x in [-40, 0]: Taylor series of x / 64, squared six times.
double exponential(double x) {
  const double r = x / 64;
  double term = 1, sum = 1;
  for (int k = 1; k <= 20; ++k) {
    term = term * r / k;
    sum += term;
  }
  for (int i = 0; i < 6; ++i) sum *= sum;
  return sum;
}

constexpr int64_t kBlock = 256;  // elements processed together, starting at multiples of kBlock
using Block = std::array<double, kBlock>;

// Replaces probabilities by quantiles: first all by the central function, then (from a branch-free list) those outside its range.
void quantiles(Block& p) {
  Block z;
  std::array<int64_t, kBlock> outside;
  int64_t count = 0;
  for (int64_t i = 0; i < kBlock; i += 4) {
    Four four;
    std::memcpy(&four, &p[static_cast<size_t>(i)], sizeof four);
    four = quantile_centre(four - 0.5);
    std::memcpy(&z[static_cast<size_t>(i)], &four, sizeof four);
  }
  for (int64_t i = 0; i < kBlock; ++i) {
    outside[static_cast<size_t>(count)] = i;
    count += std::abs(p[static_cast<size_t>(i)] - 0.5) > kCentre;
  }
  for (int64_t k = 0; k < count; ++k) {
    const auto i = static_cast<size_t>(outside[static_cast<size_t>(k)]);
    z[i] = normal_quantile(p[i]);
  }
  p = z;
}

}  // namespace

// 1/2 + phi(x) (x + x^3/3 + x^5/(3 5) + ...), Marsaglia, "Evaluating the normal distribution", 2004.
double normal_cdf(double x) {
  if (!(std::abs(x) < 8.5)) return x < 0 ? 0.0 : x > 0 ? 1.0 : x;
  double term = x, sum = x;
  for (int k = 3; std::abs(term) > 1e-18 * std::abs(sum); k += 2) {
    term = term * x * x / k;
    sum += term;
  }
  constexpr double kInverseRootTwoPi = 0x1.9884533d43651p-2;
  return std::clamp(0.5 + sum * kInverseRootTwoPi * exponential(-0.5 * x * x), 0.0, 1.0);
}

RandomValues uniform_values(double low, double high) {
  check(low < high, "uniform: expected low below high, found {} and {}", low, high);
  RandomValues v;
  v.normal = false, v.mean = low, v.std = high - low;
  v.low = low, v.high = std::nextafter(static_cast<float>(high), static_cast<float>(low));
  return v;
}

RandomValues normal_values(double mean, double std) {
  check(std >= 0, "normal: expected a standard deviation of at least 0, found {}", std);
  RandomValues v;
  v.mean = mean, v.std = std;
  return v;
}

RandomValues truncated_normal_values(double mean, double std, double low, double high) {
  check(std > 0 && low < high, "truncated normal: expected std above 0 and low below high, found {}, {} and {}", std, low, high);
  RandomValues v;
  v.mean = mean, v.std = std, v.low = low, v.high = high;
  v.first = normal_cdf((low - mean) / std), v.mass = normal_cdf((high - mean) / std) - v.first;
  check(v.mass >= 1e-12, "truncated normal: no mass between {} and {} (mean {}, std {})", low, high, mean, std);
  return v;
}

void random_fill(const RandomFill& p) {
  check_float("random fill", p.dtype);
  check(p.count >= 0 && (p.out || p.count == 0), "random fill: expected a destination for {} elements", p.count);
  const RandomValues& v = p.values;
  const uint64_t first = p.first_index, last = first + static_cast<uint64_t>(p.count), begin_block = first / kBlock;
  const auto blocks = static_cast<int64_t>((last + kBlock - 1) / kBlock - begin_block);
  parallel_for(p.count == 0 ? 0 : blocks, 16, [&](int64_t begin, int64_t end) {
    Block values;
    uint32_t words[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const uint64_t start = (begin_block + static_cast<uint64_t>(b)) * kBlock;
      philox_groups(p.key, start / 4, p.draw, kBlock / 4, words);
      for (size_t i = 0; i < kBlock; ++i) values[i] = unit_double(words[i]);
      if (v.normal) {
        for (double& x : values) x = v.probability(x);
        quantiles(values);
      }
      for (double& x : values) x = v.scaled(x);
      for (uint64_t i = std::max(first, start); i < std::min(last, start + kBlock); ++i) {
        const auto value = static_cast<float>(values[i - start]);
        if (p.dtype == DType::bf16) {
          static_cast<bf16*>(p.out)[i - first] = bf16(value);
        } else {
          static_cast<float*>(p.out)[i - first] = value;
        }
      }
    }
  });
}

}  // namespace halftone
