#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Appends the ids of one document, with the BOS and EOS that training adds. Called from several threads at once.
using DocumentEncoder = std::function<void(std::string_view text, std::vector<int32_t>& out)>;

// Incremented whenever tokenizers of unchanged files would produce different ids or documents, so that no older index is read.
inline constexpr int kEncoderVersion = 3;

// The data path's view of a tokenizer.
struct TextCodec {
  DocumentEncoder encode_document;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos_id, eos_id;
  // The text of each id; empty for special tokens.
  std::vector<std::string> token_text;
  // Digest of the tokenizer's files and of the tokens added to documents.
  std::string digest;
};

}  // namespace halftone
