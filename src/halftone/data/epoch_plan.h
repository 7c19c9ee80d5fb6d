#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace halftone {

// Bijection of [0, n), a pure function of (seed, stream, epoch): a Feistel network over the two digits of the index in base about
// sqrt(n), with keys from Philox. Needs no memory and computes any element in constant time, so that any rank can query any position.
class Shuffle {
 public:
  // Identity when !enabled.
  Shuffle(int64_t n, bool enabled, uint64_t seed, int64_t epoch, const std::string& stream = "data.shuffle");
  int64_t operator()(int64_t i) const;
  int64_t size() const { return n_; }

 private:
  static constexpr int kRounds = 6;
  int64_t n_;
  uint64_t rows_ = 1, columns_ = 1;
  bool enabled_;
  std::array<uint64_t, kRounds> keys_{};
};

// The documents of an epoch in order, each with a weight (tokens, rows), and the inverse of the running sum. Memory: one number per
// kStride documents.
class EpochPlan {
 public:
  // weight(document) >= 0; locate() calls it again.
  EpochPlan(Shuffle order, std::function<int64_t(int64_t)> weight);
  int64_t total() const { return sums_.back(); }
  int64_t documents() const { return order_.size(); }
  int64_t document(int64_t place) const { return order_(place); }
  int64_t weight(int64_t document) const { return weight_(document); }

  struct Location {
    int64_t place;   // in the order of the epoch
    int64_t offset;  // within the weight of the document there
  };
  // Location of unit `unit` of [0, total()).
  Location locate(int64_t unit) const;

 private:
  static constexpr int64_t kStride = 64;
  Shuffle order_;
  std::function<int64_t(int64_t)> weight_;
  std::vector<int64_t> sums_;  // before documents 0, kStride, 2 * kStride, ...; then the total
};

}  // namespace halftone
