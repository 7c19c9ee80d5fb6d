#include "halftone/data/bpe_model.h"

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr size_t kCacheBits = 15, kLongCacheBits = 13;
constexpr size_t kShort = 48;  // above this many symbols the heap is faster than scanning for the smallest rank

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right); }

// The first n < 8 bytes of a little-endian word.
uint64_t low_bytes(uint64_t word, size_t n) { return word & ((uint64_t{1} << (8 * n)) - 1); }

// Bytes [0, n) of p, n < 8 * words, zero-padded, with n in the last byte. Reads past n only up to readable_end.
template <size_t kWords>
std::array<uint64_t, kWords> load_key(const char* p, size_t n, const char* readable_end) {
  std::array<uint64_t, kWords> key{};
  if (static_cast<size_t>(readable_end - p) >= sizeof(key)) {
    std::memcpy(key.data(), p, sizeof(key));
    for (size_t w = 0; w < kWords; ++w) {
      if (n < 8 * w + 8) key[w] = n > 8 * w ? low_bytes(key[w], n - 8 * w) : 0;
    }
  } else {
    std::memcpy(key.data(), p, n);
  }
  key[kWords - 1] |= uint64_t{n} << 56;
  return key;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xC2B2AE3D27D4EB4Full);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

BpeModel::Scratch::Scratch() : cache_(size_t{1} << kCacheBits), long_cache_(size_t{1} << kLongCacheBits) {}

BpeModel::BpeModel(StringTable tokens, const std::vector<BpeMerge>& merges, Options options)
    : tokens_(std::move(tokens)), merges_(merges.size()), options_(options) {
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids_[b] = tokens_.find(std::string_view(&c, 1));
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    merges_[pair_key(merges[rank].left, merges[rank].right)] = {static_cast<int32_t>(rank), merges[rank].result};
  }
}

BpeModel::Target BpeModel::target(int32_t left, int32_t right) const {
  const Target* found = merges_.find(pair_key(left, right));
  return found ? *found : Target{};
}

void BpeModel::encode_piece(std::string_view piece, const char* readable_end, Scratch& scratch, std::vector<int32_t>& out) const {
  const size_t n = piece.size();
  // Looks a piece up in a direct-mapped cache; on a miss merges and stores it.
  auto cached = [&](auto& slot, auto&& matches, auto&& store) {
    if (matches(slot)) {
      out.insert(out.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
      return;
    }
    const size_t first = out.size();
    merge(piece, scratch, out);
    const size_t count = out.size() - first;
    if (count > slot.ids.size()) return;
    std::copy(out.begin() + first, out.end(), slot.ids.begin());
    slot.count = static_cast<int32_t>(count);
    store(slot);
  };
  if (n == 0) return;
  if (n < 16) {
    const auto key = load_key<2>(piece.data(), n, readable_end);
    cached(
        scratch.cache_[mix(key[0], key[1]) >> (64 - kCacheBits)],
        [&](const auto& slot) { return slot.low == key[0] && slot.high == key[1]; },
        [&](auto& slot) { slot.low = key[0], slot.high = key[1]; });
  } else if (n < 32) {
    const auto key = load_key<4>(piece.data(), n, readable_end);
    cached(
        scratch.long_cache_[mix(mix(key[0], key[1]), mix(key[2], key[3])) >> (64 - kLongCacheBits)],
        [&](const auto& slot) { return slot.key == key; }, [&](auto& slot) { slot.key = key; });
  } else {
    merge(piece, scratch, out);
  }
}

void BpeModel::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (options_.ignore_merges) {
    const int32_t id = tokens_.find(piece);
    if (id >= 0) return out.push_back(id);
  }
  std::vector<int32_t>& ids = scratch.ids_;
  ids.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (options_.unknown >= 0 && !(options_.fuse_unknown && after_unknown)) {
      ids.push_back(options_.unknown);
    }
    after_unknown = id < 0;
  }
  if (ids.size() > 1) ids.size() <= kShort ? merge_short(scratch) : merge_long(scratch);
  out.insert(out.end(), ids.begin(), ids.end());
}

// Scans for the smallest rank after every merge; `order` holds rank and result of the pair that starts at each symbol.
void BpeModel::merge_short(Scratch& scratch) const {
  int32_t* ids = scratch.ids_.data();
  size_t n = scratch.ids_.size();
  uint64_t order[kShort];
  auto pair = [&](size_t i) {
    const Target t = target(ids[i], ids[i + 1]);
    return uint64_t{static_cast<uint32_t>(t.rank)} << 32 | static_cast<uint32_t>(t.id);
  };
  for (size_t i = 0; i + 1 < n; ++i) order[i] = pair(i);
  while (n > 1) {
    const size_t best = std::min_element(order, order + n - 1) - order;
    if (order[best] >> 32 == static_cast<uint64_t>(kNoRank)) break;
    ids[best] = static_cast<int32_t>(order[best]);
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) std::copy(order + best + 2, order + n - 1, order + best + 1);
    --n;
    if (best > 0) order[best - 1] = pair(best - 1);
    if (best + 1 < n) order[best] = pair(best);
  }
  scratch.ids_.resize(n);
}

// A heap of candidate pairs over a linked list of symbols: n log n.
void BpeModel::merge_long(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<int32_t>& next = scratch.next_;
  std::vector<int32_t>& previous = scratch.previous_;
  auto& heap = scratch.heap_;
  check(ids.size() < size_t{INT32_MAX}, "a piece of text of {} bytes without a break: expected less than 2 GiB", ids.size());
  const int32_t n = static_cast<int32_t>(ids.size());
  next.resize(n);
  previous.resize(n);
  for (int32_t i = 0; i < n; ++i) next[i] = i + 1, previous[i] = i - 1;
  next[n - 1] = -1;
  auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  heap.clear();
  auto add = [&](int32_t i) {
    const int32_t rank = target(ids[i], ids[next[i]]).rank;
    if (rank != kNoRank) heap.push_back({rank, i, ids[i], ids[next[i]]});
    return rank != kNoRank;
  };
  auto push = [&](int32_t i) {
    if (add(i)) std::push_heap(heap.begin(), heap.end(), later);
  };
  for (int32_t i = 0; i + 1 < n; ++i) add(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    const Scratch::Candidate c = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const int32_t right = next[c.position];
    if (right < 0 || ids[c.position] != c.left || ids[right] != c.right) continue;  // changed since it was pushed
    ids[c.position] = target(c.left, c.right).id;
    next[c.position] = next[right];
    if (next[right] >= 0) previous[next[right]] = c.position;
    ids[right] = -1;
    next[right] = -1;
    if (previous[c.position] >= 0) push(previous[c.position]);
    if (next[c.position] >= 0) push(c.position);
  }
  std::erase(ids, -1);
}

}  // namespace halftone
