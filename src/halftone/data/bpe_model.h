#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/bpe_hash.h"

namespace halftone {

struct BpeMerge {
  int32_t left, right, result;  // token ids
};

// Byte-pair merging of one piece of text: repeatedly merges the adjacent pair whose merge is first in the list, the leftmost occurrence
// first, until no merge applies (Sennrich et al. 2016, arXiv:1508.07909).
class BpeModel {
 public:
  // Per-thread working memory: a cache of merged pieces, and arrays.
  class Scratch {
   public:
    Scratch();

   private:
    friend class BpeModel;
    static constexpr int kIds = 11;
    struct CachedPiece {           // one cache line
      uint64_t low = 0, high = 0;  // the piece's bytes, length in the last
      std::array<int32_t, kIds> ids;
      int32_t count = 0;
    };
    struct LongPiece {
      std::array<uint64_t, 4> key{};  // 16 to 31 bytes, length in the last
      std::array<int32_t, 15> ids;
      int32_t count = 0;
    };
    std::vector<CachedPiece> cache_;
    std::vector<LongPiece> long_cache_;
    std::vector<int32_t> ids_, next_, previous_;
    struct Candidate {
      int32_t rank, position, left, right;
    };
    std::vector<Candidate> heap_;
  };

  struct Options {
    bool ignore_merges = false;  // a piece that is a token is encoded as that token, whatever the merges say
    int32_t unknown = -1;        // id for a byte without a token; -1: such bytes are dropped
    bool fuse_unknown = false;   // adjacent unknown bytes become one id
  };

  BpeModel() = default;
  // `tokens` holds raw bytes by id; entries that cannot come from text (specials) are empty. Of equal pairs the last merge counts.
  BpeModel(StringTable tokens, const std::vector<BpeMerge>& merges, Options options);

  // Appends the ids of `piece`. Memory may be read up to `readable_end`, the end of the text that contains the piece.
  void encode_piece(std::string_view piece, const char* readable_end, Scratch& scratch, std::vector<int32_t>& out) const;

  // Id of one byte; -1 if the vocabulary lacks it.
  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

 private:
  struct Target {
    int32_t rank = kNoRank, id = -1;
  };
  static constexpr int32_t kNoRank = INT32_MAX;
  Target target(int32_t left, int32_t right) const;
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  StringTable tokens_;
  FlatMap<Target> merges_;
  std::array<int32_t, 256> byte_ids_{};
  Options options_;
};

}  // namespace halftone
