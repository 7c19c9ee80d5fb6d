#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

// Uses only additions, multiplications, divisions and square roots, each rounded separately (neither the host nor the device compiler
// contracts them): bit-identical on every machine and device. The C library's log differs between versions.
namespace halftone {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

template <class X, size_t N>
constexpr X polynomial(const double (&c)[N], X x) {
  X sum = c[N - 1] * x + c[N - 2];
  for (size_t i = N - 2; i-- > 0;) sum = sum * x + c[i];
  return sum;
}

// For positive normal x: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s), s = (m - 1) / (m + 1).
constexpr double natural_log(double x) {
  const uint64_t shifted = std::bit_cast<uint64_t>(x) - std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1);
  const int64_t e = static_cast<int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>(std::bit_cast<uint64_t>(x) - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1) / (m + 1);
  constexpr double kOdd[] = {2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  return static_cast<double>(e) * kLn2 + s * polynomial(kOdd, s * s);
}

inline constexpr double kCentre = 0.425;  // one rational function covers |p - 1/2| up to this value

template <class X>
constexpr X quantile_centre(X q) {
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
constexpr bool central(double p) { return p - 0.5 >= -kCentre && p - 0.5 <= kCentre; }

// Quantile of the standard normal distribution for 0 < p < 1 (the algorithm of Wichura, AS 241, 1988).
constexpr double normal_quantile(double p) {
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
  if (central(p)) return quantile_centre(q);
  const double r = std::sqrt(-natural_log(q < 0 ? p : 1 - p));
  const double z = r <= 5 ? polynomial(kMiddleTop, r - 1.6) / polynomial(kMiddleBottom, r - 1.6)
                          : polynomial(kFarTop, r - 5) / polynomial(kFarBottom, r - 5);
  return q < 0 ? -z : z;
}

}  // namespace halftone
