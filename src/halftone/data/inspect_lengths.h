#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace halftone {

// Counts of lengths, in bounded memory: exact below 128, in steps of at most 1/64 of the length above. Sum, smallest and largest are exact.
class LengthCounts {
 public:
  void add(int64_t length) {
    length = std::max<int64_t>(length, 0);
    ++counts_[place(length)];
    smallest_ = count_ == 0 ? length : std::min(smallest_, length);
    largest_ = std::max(largest_, length);
    ++count_, sum_ += length;
  }
  void add(const LengthCounts& other) {
    if (other.count_ == 0) return;
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    smallest_ = count_ == 0 ? other.smallest_ : std::min(smallest_, other.smallest_);
    largest_ = std::max(largest_, other.largest_);
    count_ += other.count_, sum_ += other.sum_;
  }
  int64_t count() const { return count_; }
  int64_t sum() const { return sum_; }
  int64_t smallest() const { return smallest_; }
  int64_t largest() const { return largest_; }
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }
  // Smallest length (as counted) that at least a share q of the lengths does not exceed.
  int64_t quantile(double q) const {
    const auto wanted = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
    int64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen >= wanted && seen > 0) return std::clamp(lower(i), smallest_, largest_);
    }
    return largest_;
  }
  struct Bin {
    int64_t begin, end, count;  // of the lengths in [begin, end)
  };
  // Bins whose width doubles, from the smallest length to the largest: [1, 2), [2, 4), ... If they are more than `most`, their width grows
  // by a larger power of two. Length 0 is a bin of its own.
  std::vector<Bin> bins(int most) const {
    std::vector<Bin> out;
    if (count_ == 0) return out;
    if (counts_[0] > 0) out.push_back({0, 1, counts_[0]});
    if (largest_ == 0) return out;
    const int first = octave(std::max<int64_t>(quantile_above_zero(), 1)), last = octave(largest_);
    const int step = std::max(1, (last - first + most) / std::max(most, 1));
    for (int o = first; o <= last; o += step) out.push_back({int64_t{1} << o, int64_t{1} << std::min(o + step, 62), 0});
    for (size_t i = 1; i < counts_.size(); ++i)
      if (counts_[i] > 0)
        out[out.size() - 1 - static_cast<size_t>((last - first) / step - (octave(lower(i)) - first) / step)].count += counts_[i];
    return out;
  }

 private:
  static constexpr int kSubBits = 6;  // 64 places an octave
  static int octave(int64_t length) { return 63 - std::countl_zero(static_cast<uint64_t>(length)); }
  static size_t place(int64_t length) {
    if (length < 2 << kSubBits) return static_cast<size_t>(length);
    const int shift = octave(length) - kSubBits;
    return static_cast<size_t>(((shift + 1) << kSubBits) + (length >> shift) - (1 << kSubBits));
  }
  static int64_t lower(size_t place) {
    const auto p = static_cast<int64_t>(place);
    if (p < 2 << kSubBits) return p;
    const int64_t shift = (p >> kSubBits) - 1;
    return ((p & ((1 << kSubBits) - 1)) + (1 << kSubBits)) << shift;
  }
  int64_t quantile_above_zero() const {
    for (size_t i = 1; i < counts_.size(); ++i)
      if (counts_[i] > 0) return lower(i);
    return 0;
  }
  std::array<int64_t, (64 - kSubBits) << kSubBits> counts_{};
  int64_t count_ = 0, sum_ = 0, smallest_ = 0, largest_ = 0;
};

}  // namespace halftone
