#pragma once
#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Open-addressing table from 64-bit keys to V, sized once or doubled at half load. The key ~0 is not allowed.
template <class V>
class FlatMap {
 public:
  struct Slot {
    uint64_t key = kEmpty;
    V value{};
  };

  explicit FlatMap(size_t expected = 0) { slots_.resize(std::bit_ceil(expected * 2 + 16)); }

  const V* find(uint64_t key) const {
    for (size_t i = index(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }
  V& operator[](uint64_t key) {
    if (size_ * 2 >= slots_.size()) grow();
    for (size_t i = index(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == kEmpty) {
        ++size_;
        slots_[i].key = key;
        return slots_[i].value;
      }
    }
  }
  size_t size() const { return size_; }
  const std::vector<Slot>& slots() const { return slots_; }  // empty ones have key kEmpty
  static constexpr uint64_t kEmpty = ~uint64_t{0};

 private:
  size_t index(uint64_t key) const {
    key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15ull;  // Fibonacci hashing
    return (key ^ (key >> 29)) & (slots_.size() - 1);
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) (*this)[slot.key] = slot.value;
    }
  }
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

// Strings by id, stored in one block, with the reverse map from string to id.
class StringTable {
 public:
  // `strings[id]`; an empty string means that the id has none. Of equal strings the last one is found.
  explicit StringTable(const std::vector<std::string>& strings = {}) {
    begin_.reserve(strings.size() + 1);
    begin_.push_back(0);
    for (const std::string& s : strings) {
      bytes_ += s;
      begin_.push_back(bytes_.size());
    }
    ids_.assign(std::bit_ceil(strings.size() * 2 + 2), -1);
    for (size_t id = 0; id < strings.size(); ++id) {
      if (strings[id].empty()) continue;
      size_t i = XXH3_64bits(strings[id].data(), strings[id].size()) & (ids_.size() - 1);
      while (ids_[i] >= 0 && (*this)[ids_[i]] != strings[id]) i = (i + 1) & (ids_.size() - 1);
      ids_[i] = static_cast<int32_t>(id);
    }
  }
  int32_t size() const { return static_cast<int32_t>(begin_.size()) - 1; }
  std::string_view operator[](int32_t id) const { return std::string_view(bytes_).substr(begin_[id], begin_[id + 1] - begin_[id]); }
  // -1 when no id has this string.
  int32_t find(std::string_view s) const {
    for (size_t i = XXH3_64bits(s.data(), s.size()) & (ids_.size() - 1); ids_[i] >= 0; i = (i + 1) & (ids_.size() - 1)) {
      if ((*this)[ids_[i]] == s) return ids_[i];
    }
    return -1;
  }

 private:
  std::string bytes_;
  std::vector<size_t> begin_;
  std::vector<int32_t> ids_;
};

}  // namespace halftone
