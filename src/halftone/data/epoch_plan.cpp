#include "halftone/data/epoch_plan.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"

namespace halftone {
namespace {

// Finaliser of MurmurHash3 (Appleby): every input bit affects every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return x ^ (x >> 33);
}

// Uniform in [0, n) from 64 random bits.
uint64_t scale(uint64_t random, uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * n) >> 64); }

}  // namespace

Shuffle::Shuffle(int64_t n, bool enabled, uint64_t seed, int64_t epoch, const std::string& stream) : n_(n), enabled_(enabled && n > 1) {
  if (!enabled_) return;
  const auto u = static_cast<uint64_t>(n);
  rows_ = std::max<uint64_t>(1, static_cast<uint64_t>(std::sqrt(static_cast<double>(n))));
  columns_ = (u + rows_ - 1) / rows_;  // rows_ * columns_ is at least n and less than n + rows_
  const PhiloxKey key = philox_key(seed, stream);
  for (uint64_t r = 0; r < kRounds; ++r) {
    const auto random =
        philox({static_cast<uint32_t>(r), static_cast<uint32_t>(epoch), static_cast<uint32_t>(static_cast<uint64_t>(epoch) >> 32), 0}, key);
    keys_[r] = static_cast<uint64_t>(random[0]) << 32 | random[1];
  }
}

int64_t Shuffle::operator()(int64_t i) const {
  if (!enabled_) return i;
  auto x = static_cast<uint64_t>(i);
  do {  // leaves [0, n) for fewer than rows_ inputs, which continue until they are back (cycle walking)
    uint64_t row = x / columns_, column = x % columns_;
    for (int r = 0; r < kRounds; r += 2) {
      row += scale(mix(column + keys_[static_cast<size_t>(r)]), rows_);
      row -= row >= rows_ ? rows_ : 0;
      column += scale(mix(row + keys_[static_cast<size_t>(r) + 1]), columns_);
      column -= column >= columns_ ? columns_ : 0;
    }
    x = row * columns_ + column;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

EpochPlan::EpochPlan(Shuffle order, std::function<int64_t(int64_t)> weight) : order_(order), weight_(std::move(weight)) {
  const int64_t n = order_.size(), blocks = (n + kStride - 1) / kStride;
  sums_.assign(static_cast<size_t>(blocks) + 1, 0);
  parallel_for(blocks, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t sum = 0;
      for (int64_t i = b * kStride; i < std::min(n, (b + 1) * kStride); ++i) sum += weight_(order_(i));
      sums_[static_cast<size_t>(b) + 1] = sum;
    }
  });
  for (size_t b = 1; b < sums_.size(); ++b) sums_[b] += sums_[b - 1];
}

EpochPlan::Location EpochPlan::locate(int64_t unit) const {
  check(unit >= 0 && unit < total(), "epoch plan: unit {} of {}", unit, total());
  const auto block = std::prev(std::upper_bound(sums_.begin(), sums_.end(), unit));
  int64_t place = (block - sums_.begin()) * kStride;
  int64_t rest = unit - *block;
  for (;; ++place) {
    check(place < order_.size(), "epoch plan: the document table changed");
    const int64_t w = weight_(order_(place));
    if (rest < w) return {place, rest};
    rest -= w;
  }
}

}  // namespace halftone
