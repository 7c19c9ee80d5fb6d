#include "halftone/fused/stored_weight.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"

namespace halftone {
namespace {

void store_int8_row(const StoreWeight& p, int64_t r) {
  const float* x = p.w + r * p.k;
  uint32_t amax = 0;
  for (int64_t j = 0; j < p.k; ++j) amax = std::max(amax, std::bit_cast<uint32_t>(x[j]) & 0x7FFFFFFFu);
  const ScalePair s = int8_scale(amax);
  p.scales[r] = s.scale;
  uint8_t* out = p.codes + r * p.k;
  if (!p.rounding.stochastic) {
    for (int64_t j = 0; j < p.k; ++j) out[j] = static_cast<uint8_t>(encode(Int::int8, x[j] * s.inv));
    return;
  }
  // One Philox call covers four elements.
  int64_t group = -1;
  std::array<uint32_t, 4> words{};
  for (int64_t j = 0, i = p.rounding.index(r, 0, p.k); j < p.k; ++j, ++i) {
    if (i >> 2 != group) group = i >> 2, words = philox(p.rounding.key, static_cast<uint64_t>(group), p.rounding.step, p.rounding.micro);
    out[j] = static_cast<uint8_t>(encode_sr32(Int::int8, x[j] * s.inv, words[static_cast<size_t>(i & 3)]));
  }
}

}  // namespace

void store_weight(const StoreWeight& p) {
  if (p.outcome && !p.outcome->updated) return;
  check_shape("stored weight", p.n, p.k);
  check(p.element == Element::int8 || (p.element == Element::uint4 && p.group % 2 == 0 && p.group > 0 && p.k % p.group == 0),
        "stored weight: expected int8, or uint4 with {} columns in whole groups of {}", p.k, p.group);
  parallel_for(p.n, row_grain(p.k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.element == Element::int8) {
        store_int8_row(p, r);
      } else {
        for (int64_t g = 0; g < p.k / p.group; ++g) store_uint4_group(p, r, g);
      }
    }
  });
}

}  // namespace halftone
