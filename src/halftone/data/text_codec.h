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

// Raised whenever tokenizers of unchanged files would give other ids or documents than before, so that no older index is read.
inline constexpr int kEncoderVersion = 3;

// What the data path needs to know of a tokenizer.
struct TextCodec {
  DocumentEncoder encode_document;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos_id, eos_id;
  // The text that each id stands for; empty for special tokens.
  std::vector<std::string> token_text;
  // Of the tokenizer's files and of what is added to documents.
  std::string digest;
};

}  // namespace halftone
