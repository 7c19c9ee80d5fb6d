#include "halftone/data/inspect_sketch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace halftone {
namespace {

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;  // odd, with irregular bits
constexpr int kBandBytes = kPermutations / kBands;
constexpr size_t kSameBand = 16;  // documents compared in one band: boilerplate puts any number there
static_assert(kBandBytes == 4);

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9;
  return x ^ (x >> 29);
}

struct Permutations {
  alignas(64) std::array<uint32_t, kPermutations> factor, offset;
  uint32_t draw_factor, draw_offset;
  constexpr Permutations() : factor{}, offset{}, draw_factor(0), draw_offset(0) {
    uint64_t state = 1;
    const auto next = [&state] {  // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
      uint64_t z = state += kPrime;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
    };
    for (auto& f : factor) f = next() | 1;
    for (auto& o : offset) o = next();
    draw_factor = next() | 1, draw_offset = next();
  }
};
constexpr Permutations kMaps;

// The smallest value of each permutation x -> factor x + offset (mod 2^32) of the shingles' hashes.
class Minima {
 public:
  Minima() { minima_.fill(UINT32_MAX); }
  void add(uint64_t shingle) {
    batch_[filled_++] = static_cast<uint32_t>(mixed(shingle) >> 32);
    if (filled_ == batch_.size()) flush();
  }
  bool finish(Sketch& out) {
    flush();
    if (empty_) return false;
    for (size_t p = 0; p < kPermutations; ++p) out.minima[p] = static_cast<uint8_t>((minima_[p] * 0x9E3779B1U) >> 24);
    out.draw = static_cast<uint32_t>(mixed(draw_ + kPrime) >> 32);
    return true;
  }

 private:
  void flush() {
    if (filled_ == 0) return;
    empty_ = false;
    constexpr size_t kLanes = 16;  // minima, factors and offsets stay in registers
    for (size_t first = 0; first < kPermutations; first += kLanes) {
      std::array<uint32_t, kLanes> best;
      std::copy_n(minima_.begin() + first, kLanes, best.begin());
      for (size_t i = 0; i < filled_; ++i) {
        const uint32_t x = batch_[i];
        for (size_t lane = 0; lane < kLanes; ++lane)
          best[lane] = std::min(best[lane], x * kMaps.factor[first + lane] + kMaps.offset[first + lane]);
      }
      std::copy_n(best.begin(), kLanes, minima_.begin() + first);
    }
    for (size_t i = 0; i < filled_; ++i) draw_ = std::min(draw_, batch_[i] * kMaps.draw_factor + kMaps.draw_offset);
    filled_ = 0;
  }
  std::array<uint32_t, kPermutations> minima_;
  std::array<uint32_t, 512> batch_;
  size_t filled_ = 0;
  uint32_t draw_ = UINT32_MAX;
  bool empty_ = true;
};

// Hashes of every kShingleWords consecutive words: a polynomial whose oldest term is taken off as the next is added.
class Shingles {
 public:
  explicit Shingles(Minima& minima) : minima_(minima) {}
  void word(uint64_t hash) {
    hash = mixed(hash);
    uint64_t& oldest = ring_[count_ % kShingleWords];
    sum_ = (sum_ - oldest * kLast) * kFactor + hash;
    oldest = hash;
    if (++count_ >= kShingleWords) minima_.add(sum_);
  }
  void finish() {
    if (count_ > 0 && count_ < kShingleWords) minima_.add(sum_);
  }

 private:
  static constexpr uint64_t kFactor = 0xD6E8FEB86659FD93;
  static constexpr uint64_t kLast = kFactor * kFactor * kFactor * kFactor;  // of the term added kShingleWords - 1 words before
  static_assert(kShingleWords == 5);
  Minima& minima_;
  std::array<uint64_t, kShingleWords> ring_{};
  uint64_t sum_ = 0, count_ = 0;
};

// A byte that belongs to a word in lower case; 0 for those between words; 1 for the first of a character that may be a word of its own.
constexpr std::array<uint8_t, 256> kLetters = [] {
  std::array<uint8_t, 256> t{};
  for (int c = '0'; c <= '9'; ++c) t[static_cast<size_t>(c)] = static_cast<uint8_t>(c);
  for (int c = 'a'; c <= 'z'; ++c) t[static_cast<size_t>(c)] = t[static_cast<size_t>(c - 32)] = static_cast<uint8_t>(c);
  for (int c = 0x80; c < 0xE0; ++c) t[static_cast<size_t>(c)] = static_cast<uint8_t>(c);
  for (int c = 0xE0; c < 0x100; ++c) t[static_cast<size_t>(c)] = 1;
  return t;
}();

void add_words(std::string_view text, Shingles& out) {
  constexpr uint64_t kStart = 0xCBF29CE484222325, kStep = 0x100000001B3;  // FNV-1a
  uint64_t hash = kStart;
  const auto end_word = [&] {
    if (hash != kStart) out.word(hash);
    hash = kStart;
  };
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = bytes[i];
    const uint8_t letter = kLetters[c];
    if (letter > 1) {
      hash = (hash ^ letter) * kStep;
      continue;
    }
    if (letter == 0) {
      end_word();
      continue;
    }
    const unsigned char second = i + 1 < text.size() ? bytes[i + 1] : 0;
    if (c == 0xE0 && second < 0xB8) {  // U+0800 to U+0DFF
      hash = (hash ^ c) * kStep;
      continue;
    }
    end_word();
    const size_t length = std::min<size_t>(c < 0xF0 ? 3 : 4, text.size() - i);
    // U+2000 to U+207F and U+3000 to U+303F are punctuation.
    const bool between = (c == 0xE2 && (second == 0x80 || second == 0x81)) || (c == 0xE3 && second == 0x80);
    for (size_t k = 0; k < length; ++k) hash = (hash ^ bytes[i + k]) * kStep;
    if (between) hash = kStart;
    end_word();
    i += length - 1;
  }
  end_word();
}

bool sketched(Sketch& out, auto&& add) {
  Minima minima;
  Shingles shingles(minima);
  add(shingles);
  shingles.finish();
  return minima.finish(out);
}

uint32_t band_of(const Sketch& sketch, size_t band) {
  uint32_t key = 0;
  std::memcpy(&key, sketch.minima.data() + band * kBandBytes, sizeof key);
  return key;
}

size_t slot_of(uint64_t key, size_t slots) { return static_cast<size_t>(mixed(key * kPrime)) & (slots - 1); }

}  // namespace

bool sketch_text(std::string_view text, Sketch& out) {
  return sketched(out, [text](Shingles& shingles) { add_words(text, shingles); });
}

bool sketch_ids(std::span<const int32_t> ids, Sketch& out) {
  return sketched(out, [ids](Shingles& shingles) {
    for (const int32_t id : ids) shingles.word((static_cast<uint64_t>(id) + 1) * kPrime);
  });
}

double similarity(const Sketch& a, const Sketch& b) {
  int equal = 0;
  for (size_t p = 0; p < kPermutations; ++p) equal += a.minima[p] == b.minima[p] ? 1 : 0;
  constexpr double kChance = 1.0 / 256;
  return std::max(0.0, (static_cast<double>(equal) / kPermutations - kChance) / (1 - kChance));
}

ExactDuplicates::ExactDuplicates(int64_t capacity) : capacity_(static_cast<size_t>(std::max<int64_t>(capacity, 16))), slots_(1024, 0) {}

bool ExactDuplicates::add(uint64_t hash) {
  hash += hash == 0 ? 1 : 0;
  const auto draw = static_cast<uint32_t>(hash >> 32);
  if (!share_.samples(draw)) {
    share_.add(draw, false);
    return false;
  }
  const bool found = !insert(hash);
  share_.add(draw, found);
  if (used_ > capacity_) {
    share_.halve();
    rebuild(slots_.size());
  } else if (4 * used_ > 3 * slots_.size()) {
    rebuild(2 * slots_.size());
  }
  return found;
}

bool ExactDuplicates::insert(uint64_t hash) {
  for (size_t at = slot_of(hash, slots_.size());; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] == hash) return false;
    if (slots_[at] != 0) continue;
    slots_[at] = hash;
    ++used_;
    return true;
  }
}

void ExactDuplicates::rebuild(size_t slots) {
  const std::vector<uint64_t> old = std::exchange(slots_, std::vector<uint64_t>(slots, 0));
  used_ = 0;
  for (const uint64_t hash : old)
    if (hash != 0 && share_.samples(static_cast<uint32_t>(hash >> 32))) insert(hash);
}

NearDuplicates::NearDuplicates(int64_t capacity) : capacity_(static_cast<size_t>(std::clamp<int64_t>(capacity, 16, INT32_MAX))) {
  for (auto& table : tables_) table.assign(1024, 0);
}

double NearDuplicates::add(const Sketch& sketch, int64_t document, int64_t& earlier) {
  const bool sampled = share_.samples(sketch.draw);
  for (size_t b = 0; sampled && b < kBands; ++b) {
    const uint32_t key = band_of(sketch, b);
    const std::vector<uint32_t>& table = tables_[b];
    for (size_t at = slot_of(key, table.size()); table[at] != 0; at = (at + 1) & (table.size() - 1)) {
      const Kept& other = kept_[table[at] - 1];
      if (band_of(other.sketch, b) != key) continue;
      const double alike = similarity(sketch, other.sketch);
      if (alike < kNearDuplicate) continue;
      share_.add(sketch.draw, true);
      earlier = other.document;
      return alike;
    }
  }
  share_.add(sketch.draw, false);
  if (!sampled) return 0;
  kept_.push_back({sketch, document});
  if (kept_.size() > capacity_) {
    share_.halve();
    std::erase_if(kept_, [this](const Kept& kept) { return !share_.samples(kept.sketch.draw); });
    rebuild(tables_[0].size());
  } else if (4 * kept_.size() > 3 * tables_[0].size()) {
    rebuild(2 * tables_[0].size());
  } else {
    insert(static_cast<uint32_t>(kept_.size() - 1));
  }
  return 0;
}

void NearDuplicates::insert(uint32_t kept) {
  for (size_t b = 0; b < kBands; ++b) {
    const uint32_t key = band_of(kept_[kept].sketch, b);
    std::vector<uint32_t>& table = tables_[b];
    size_t at = slot_of(key, table.size());
    for (size_t same = 0; table[at] != 0 && same < kSameBand; at = (at + 1) & (table.size() - 1))
      same += band_of(kept_[table[at] - 1].sketch, b) == key ? 1 : 0;
    if (table[at] == 0) table[at] = kept + 1;
  }
}

void NearDuplicates::rebuild(size_t slots) {
  for (auto& table : tables_) table.assign(slots, 0);
  for (uint32_t kept = 0; kept < kept_.size(); ++kept) insert(kept);
}

}  // namespace halftone
