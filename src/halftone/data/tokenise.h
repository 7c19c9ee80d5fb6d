#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "halftone/data/source.h"
#include "halftone/data/text_codec.h"
#include "halftone/data/token_store.h"

namespace halftone {

// One shard's documents as ids.
struct TokenisedShard {
  int64_t documents = 0, empty_documents = 0, text_bytes = 0;
  int64_t chats = 0, masked_documents = 0;  // conversations; documents with tokens that have no loss
  BadLines bad_lines;                       // skipped
  std::vector<std::byte> tokens;            // little-endian, `width` bytes each; empty if the source's files are used in place
  std::vector<uint8_t> loss;                // 1 for each token with a loss; empty: all have one
  std::vector<DocumentEntry> entries;       // `end` is relative to the start of the shard
};

// Bytes per stored id: 2 up to 65,536 entries, otherwise 4.
inline int width_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

// The ids of a text, a conversation or ids, and of each whether it has a loss (empty: all have one). Returns whether they are one document
// even where an EOS stands inside, as conversations and masked ids are.
bool encode_ids(const Document& document, const TextCodec& codec, std::vector<int32_t>& ids, std::vector<uint8_t>& loss);

// Encodes every document of `source` on `threads` threads and passes the shards to `take` in order, on this thread. Logs progress every
// few seconds. Documents without text or ids are counted and dropped.
void tokenise_source(const DocumentSource& source, const TextCodec& codec, int width, int threads,
                     const std::function<void(TokenisedShard&&)>& take);

}  // namespace halftone
