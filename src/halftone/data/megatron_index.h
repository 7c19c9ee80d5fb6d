#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace halftone {

// Megatron-LM's prefix.idx (its MMapIndexedDataset), little-endian: "MMIDIDX\0\0", u64 version 1, u8 dtype code, u64 sequences n, u64 m,
// int32 length[n] in tokens, int64 byte offset[n] in prefix.bin, int64 document[m]: the first sequence of each document, then n. n bytes of
// modes of a multimodal set may follow. `bytes` must outlive the index.
class MegatronIndex {
 public:
  // Checks every count, offset and length against the sizes of both files. Error naming `path` for anything else, and for ids that are not
  // integers.
  MegatronIndex(std::span<const std::byte> bytes, int64_t bin_bytes, const std::string& path);
  int64_t documents() const { return documents_ - 1; }
  int64_t tokens() const { return tokens_; }
  int width() const { return width_; }  // bytes per id
  bool is_signed() const { return signed_; }
  // Whether the documents' ids fill prefix.bin from its start to its end, in order.
  bool contiguous() const { return contiguous_; }
  // Calls visit(offset, tokens) for each sequence of a document.
  void each_sequence(int64_t document, const std::function<void(int64_t offset, int64_t tokens)>& visit) const;

 private:
  int64_t length(int64_t sequence) const;
  int64_t offset(int64_t sequence) const;
  int64_t first_sequence(int64_t document) const;
  std::span<const std::byte> bytes_;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  int width_ = 0;
  bool signed_ = false, contiguous_ = true;
};

// Id `i` of `bytes`.
int64_t megatron_id(std::span<const std::byte> bytes, size_t i, int width, bool is_signed);

}  // namespace halftone
