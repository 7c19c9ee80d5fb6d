#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace halftone {

// MinHash (Broder, "On the resemblance and containment of documents", 1997) with one byte kept of each minimum (b-bit minwise hashing, Li
// and Koenig, WWW 2010): two sketches agree in about a share J of their bytes, J the Jaccard similarity of their sets of shingles.
constexpr int kPermutations = 64;
constexpr int kBands = 16;                    // of 4 bytes; similar documents share one with probability 1 - (1 - J^4)^16
constexpr int kShingleWords = 5;              // consecutive words, or ids
constexpr double kNearDuplicate = 0.8;        // smallest estimate of J that makes a near duplicate
constexpr int64_t kMostSketches = 1 << 19;    // compared with at a time, about 250 bytes each
constexpr int64_t kMostTextHashes = 1 << 22;  // the same for exact duplicates, 8 to 16 bytes each

struct Sketch {
  std::array<uint8_t, kPermutations> minima;
  uint32_t draw;  // from one more minimum: a sample by it keeps similar documents together, with probability J
};

// Shingles of words. A word is a run of ASCII letters and digits in any case and of characters below U+0E00; a character from there on
// (Thai, Hangul, Chinese, Japanese: written without blanks) is a word of its own. A text with fewer words is one shingle. False for a text
// without words, which resembles nothing.
bool sketch_text(std::string_view text, Sketch& out);
bool sketch_ids(std::span<const int32_t> ids, Sketch& out);
// Estimate of the Jaccard similarity: the share of equal bytes, less what chance makes equal.
double similarity(const Sketch& a, const Sketch& b);

// How many of the documents have a property, from a sample that is halved when its memory is full. A document's `draw` decides how many
// halvings it survives.
class SampledShare {
 public:
  void add(uint32_t draw, bool has) {
    ++all_[static_cast<size_t>(std::countl_zero(draw))];
    if (has) ++found_[static_cast<size_t>(std::countl_zero(draw))];
  }
  bool samples(uint32_t draw) const { return std::countl_zero(draw) >= halvings_; }
  void halve() { ++halvings_; }
  bool whole() const { return halvings_ == 0; }
  int64_t documents() const { return sum(all_); }  // in the sample
  int64_t found() const { return sum(found_); }
  double share() const { return documents() == 0 ? 0 : static_cast<double>(found()) / static_cast<double>(documents()); }

 private:
  using Counts = std::array<int64_t, 33>;  // by the leading zeros of the draw
  int64_t sum(const Counts& counts) const {
    int64_t total = 0;
    for (size_t zeros = static_cast<size_t>(halvings_); zeros < counts.size(); ++zeros) total += counts[zeros];
    return total;
  }
  Counts all_{}, found_{};
  int halvings_ = 0;
};

// Finds documents with the text of an earlier one, by a hash of it.
class ExactDuplicates {
 public:
  explicit ExactDuplicates(int64_t capacity = kMostTextHashes);
  bool add(uint64_t hash);
  const SampledShare& share() const { return share_; }

 private:
  bool insert(uint64_t hash);
  void rebuild(size_t slots);
  size_t capacity_, used_ = 0;
  std::vector<uint64_t> slots_;  // open addressing; 0 = free
  SampledShare share_;
};

// Finds documents that resemble an earlier one, as a filter does that keeps the first of each kind: only documents that resemble none are
// compared with later ones.
class NearDuplicates {
 public:
  explicit NearDuplicates(int64_t capacity = kMostSketches);
  // The similarity to the first document found that it resembles, whose number goes to `earlier`; 0 if there is none, or if the document
  // is not in the sample.
  double add(const Sketch& sketch, int64_t document, int64_t& earlier);
  const SampledShare& share() const { return share_; }

 private:
  struct Kept {
    Sketch sketch;
    int64_t document;
  };
  void insert(uint32_t kept);
  void rebuild(size_t slots);
  size_t capacity_;
  std::vector<Kept> kept_;
  std::array<std::vector<uint32_t>, kBands> tables_;  // open addressing; position in kept_ + 1
  SampledShare share_;
};

}  // namespace halftone
