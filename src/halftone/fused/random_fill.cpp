#include "halftone/fused/random_fill.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/philox_groups.h"

// The C library's exp, log and erfc differ between its versions and between instruction sets, so this file has its own,
// from additions, multiplications and divisions alone (the build never contracts them into fused operations).
namespace halftone {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// Four numbers at once: the same operations on each as on a single double.
using Four = double __attribute__((vector_size(32)));

template <class X, size_t N>
X polynomial(const double (&c)[N], X x) {
  X sum = c[N - 1] * x + c[N - 2];
  for (size_t i = N - 2; i-- > 0;) sum = sum * x + c[i];
  return sum;
}

// For normal positive x: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s), s = (m - 1) / (m + 1).
double natural_log(double x) {
  const uint64_t shifted = std::bit_cast<uint64_t>(x) - std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1);
  const int64_t e = static_cast<int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>(std::bit_cast<uint64_t>(x) - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1) / (m + 1);
  constexpr double kOdd[] = {2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  return static_cast<double>(e) * kLn2 + s * polynomial(kOdd, s * s);
}

// e^x for x in [-40, 0]: Taylor's series of x / 64, squared six times.
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

constexpr double kCentre = 0.425;  // |p - 1/2| up to which one rational function does

template <class X>
X quantile_centre(X q) {
  constexpr double kTop[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                             4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kBottom[] = {1.0,
                                4.2313330701600911252e+1,
                                6.8718700749205790830e+2,
                                5.3941960214247511077e+3,
                                2.1213794301586595867e+4,
                                3.9307895800092710610e+4,
                                2.8729085735721942674e+4,
                                5.2264952788528545610e+3};
  const X r = 0.180625 - q * q;
  return q * polynomial(kTop, r) / polynomial(kBottom, r);
}

constexpr int64_t kBlock = 256;  // elements worked on together, from an index that is a multiple of it
using Block = std::array<double, kBlock>;

// Replaces probabilities by quantiles: all by the central function, then, listed without a branch, those outside its range.
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

// f(block) turns the uniform numbers of a block, in (0, 1), into the values.
template <class F>
void fill(const RandomFill& p, F&& f) {
  check_float("random fill", p.dtype);
  check(p.count >= 0 && (p.out || p.count == 0), "random fill: expected a destination for {} elements", p.count);
  const uint64_t first = p.first_index, last = first + static_cast<uint64_t>(p.count), begin_block = first / kBlock;
  const auto blocks = static_cast<int64_t>((last + kBlock - 1) / kBlock - begin_block);
  parallel_for(p.count == 0 ? 0 : blocks, 16, [&](int64_t begin, int64_t end) {
    Block values;
    uint32_t words[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const uint64_t start = (begin_block + static_cast<uint64_t>(b)) * kBlock;
      philox_groups(p.key, start / 4, p.draw, kBlock / 4, words);
      for (size_t i = 0; i < kBlock; ++i) values[i] = (static_cast<double>(words[i]) + 0.5) * 0x1p-32;
      f(values);
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

}  // namespace

double normal_quantile(double p) {
  constexpr double kMiddleTop[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                   3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kMiddleBottom[] = {1.0,
                                      2.05319162663775882187e0,
                                      1.67638483018380384940e0,
                                      6.89767334985100004550e-1,
                                      1.48103976427480074590e-1,
                                      1.51986665636164571966e-2,
                                      5.47593808499534494600e-4,
                                      1.05075007164441684324e-9};
  constexpr double kFarTop[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,  2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kFarBottom[] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= kCentre) return quantile_centre(q);
  const double r = std::sqrt(-natural_log(q < 0 ? p : 1 - p));
  const double z = r <= 5 ? polynomial(kMiddleTop, r - 1.6) / polynomial(kMiddleBottom, r - 1.6)
                          : polynomial(kFarTop, r - 5) / polynomial(kFarBottom, r - 5);
  return q < 0 ? -z : z;
}

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

void fill_uniform(const RandomFill& p, double low, double high) {
  check(low < high, "uniform: expected low below high, found {} and {}", low, high);
  const double below = std::nextafter(static_cast<float>(high), static_cast<float>(low));
  fill(p, [&](Block& values) {
    for (double& x : values) x = std::clamp(low + (high - low) * x, low, below);
  });
}

void fill_normal(const RandomFill& p, double mean, double std) {
  check(std >= 0, "normal: expected a standard deviation of at least 0, found {}", std);
  fill(p, [&](Block& values) {
    quantiles(values);
    for (double& x : values) x = mean + std * x;
  });
}

void fill_truncated_normal(const RandomFill& p, double mean, double std, double low, double high) {
  check(std > 0 && low < high, "truncated normal: expected std above 0 and low below high, found {}, {} and {}", std, low, high);
  const double first = normal_cdf((low - mean) / std), mass = normal_cdf((high - mean) / std) - first;
  check(mass >= 1e-12, "truncated normal: no mass between {} and {} (mean {}, std {})", low, high, mean, std);
  fill(p, [&](Block& values) {
    for (double& x : values) x = std::clamp(first + mass * x, 0x1p-60, 1 - 0x1p-53);
    quantiles(values);
    for (double& x : values) x = std::clamp(mean + std * x, low, high);
  });
}

}  // namespace halftone
