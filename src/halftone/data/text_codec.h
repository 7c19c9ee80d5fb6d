#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/chat/conversation.h"

namespace halftone {

// Appends the ids of one document, with the BOS and EOS that training adds. Called from several threads at once.
using DocumentEncoder = std::function<void(std::string_view text, std::vector<int32_t>& out)>;

// Appends the ids of a conversation as rendered, and for each of them 1 if it has a loss, else 0. Special tokens in the text are tokens. An
// id has a loss if its first byte lies in one of the `learned` ranges of the text. BOS and EOS are added where they are missing; they count
// as the first and the last byte of the text. Newlines at the end are dropped. Called from several threads at once.
using ChatEncoder =
    std::function<void(std::string_view text, std::span<const ByteRange> learned, std::vector<int32_t>& ids, std::vector<uint8_t>& loss)>;

// Incremented whenever tokenizers of unchanged files would produce different ids or documents, so that no older index is read.
inline constexpr int kEncoderVersion = 3;

// The data path's view of a tokenizer.
struct TextCodec {
  DocumentEncoder encode_document;
  ChatEncoder encode_chat;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos_id, eos_id;
  // Whether the texts of a document's ids, joined, are the document's text, or else of another length: nothing is replaced.
  bool keeps_text = false;
  // The text of each id; empty for special tokens.
  std::vector<std::string> token_text;
  // Digest of the tokenizer's files and of the tokens added to documents.
  std::string digest;
};

}  // namespace halftone
