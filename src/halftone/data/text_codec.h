#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Appends the ids of one document, with the BOS and EOS that training wants. Called from several threads at once.
using DocumentEncoder = std::function<void(std::string_view text, std::vector<int32_t>& out)>;

// Raised whenever tokenizers of unchanged files would give other ids than before, so that no index of older ids is read.
inline constexpr int kEncoderVersion = 2;

// What the data path needs to know of a tokenizer.
struct TextCodec {
  DocumentEncoder encode_document;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos_id, eos_id;
  // Bytes of text that each id stands for; 0 for special tokens. Empty: unknown, then bits per byte are not reported.
  std::vector<int32_t> token_bytes;
  // Of the tokenizer's files and of what is added to documents.
  std::string digest;
};

}  // namespace halftone
