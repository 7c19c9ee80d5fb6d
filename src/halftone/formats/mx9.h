#pragma once
#include <bit>
#include <cstdint>

#include "halftone/formats/float_spec.h"
#include "halftone/formats/int_spec.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/scale_code.h"
#include "halftone/formats/scale_pair.h"

namespace halftone {

// MX9 and MX6 (numerics.md 3.9): blocks of 16 along the last dimension with one e8m0 byte, one prime bit per pair that halves the pair's
// scale, and integers of `bits` = 8 or 5 bits. Forward only: post-training weights and activations.
inline constexpr int kMx9Block = 16;
constexpr int mx9_bytes(int bits) { return bits == 8 ? 18 : 12; }  // bytes of one packed block

constexpr int mx9_exponent(uint32_t magnitude_bits) { return static_cast<int>(magnitude_bits >> 23) - 127; }

// Prime bit of a pair; emax is the block's largest exponent.
constexpr bool mx9_prime(uint32_t even_bits, uint32_t odd_bits, int emax) {
  return mx9_exponent(even_bits) <= emax - 1 && mx9_exponent(odd_bits) <= emax - 1;
}
// Exponent of a pair's scale.
constexpr int mx9_scale_exponent(int bits, int emax, bool prime) {
  const int e = emax - (prime ? 1 : 0) - bits + 2;
  return e > -126 ? e : -126;
}
// clip(rint(x / 2^e)), symmetric; the fp64 quotient is exact.
constexpr int mx9_code(int bits, float x, int e) {
  const int top = (1 << (bits - 1)) - 1;
  const double q = static_cast<double>(x) / FloatSpec::pow2(e);
  if (q >= top) return top;
  if (q <= -top) return -top;
  const double k = detail::floor_small(q), rest = q - k;
  const bool up = rest > 0.5 || (rest == 0.5 && (static_cast<int64_t>(k) & 1) != 0);
  return static_cast<int>(k) + (up ? 1 : 0);
}

// Encodes n <= 16 elements into one packed block of mx9_bytes(bits) bytes; missing elements are zero. MX9: e8m0, prime byte (bit j = pair
// j), 16 x int8. MX6: e8m0, prime byte, 2 sign bytes (bit i = element i), 8 bytes of (q & 15), even low.
constexpr void mx9_encode(int bits, const float* x, int n, uint8_t* out) {
  uint32_t magnitude[kMx9Block] = {}, amax = 0;
  for (int i = 0; i < n; ++i) {
    magnitude[i] = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    if (magnitude[i] > amax) amax = magnitude[i];
  }
  for (int i = 0; i < mx9_bytes(bits); ++i) out[i] = 0;
  out[0] = static_cast<uint8_t>(amax >> 23);  // Emax + 127; 255 when poisoned, then all other bytes stay 0
  if (poisoned(amax)) return;
  const int emax = mx9_exponent(amax);
  for (int i = 0; i < kMx9Block; ++i) {
    const bool prime = mx9_prime(magnitude[i & ~1], magnitude[i | 1], emax);
    if (prime) out[1] = static_cast<uint8_t>(out[1] | 1 << i / 2);
    const int q = mx9_code(bits, i < n ? x[i] : 0.0f, mx9_scale_exponent(bits, emax, prime));
    if (bits == 8) {
      out[2 + i] = static_cast<uint8_t>(q);
    } else {
      out[4 + i / 2] = static_cast<uint8_t>(out[4 + i / 2] | (q & 15) << (i % 2 * 4));
      if (q < 0) out[2 + i / 8] = static_cast<uint8_t>(out[2 + i / 8] | 1 << i % 8);
    }
  }
}

// Decodes the n values of a packed block.
constexpr void mx9_decode(int bits, const uint8_t* block, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    if (block[0] == kE8m0Nan) {
      out[i] = quiet_nan();
      continue;
    }
    int q = static_cast<int8_t>(block[2 + i]);
    if (bits != 8) q = unpack4(block[4 + i / 2], i) - ((block[2 + i / 8] >> i % 8 & 1) != 0 ? 16 : 0);
    const bool prime = (block[1] >> i / 2 & 1) != 0;
    out[i] = static_cast<float>(q * FloatSpec::pow2(mx9_scale_exponent(bits, static_cast<int>(block[0]) - 127, prime)));
  }
}

}  // namespace halftone
