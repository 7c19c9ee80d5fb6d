#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/data/file_io.h"
#include "halftone/data/source.h"
#include "halftone/data/text_codec.h"

namespace halftone {

// Row of the document table: end of the document in the token stream, and a hash of its text that selects held-out documents. The hash
// covers the bytes of its ids, so that it is the same for every kind of source.
struct DocumentEntry {
  uint64_t end;
  uint64_t hash;
};
static_assert(sizeof(DocumentEntry) == 16);

// A corpus as token ids with random access by document. Everything is memory-mapped: memory use does not grow with the corpus.
// Thread-safe.
class TokenStore {
 public:
  struct Stats {
    int64_t documents = 0, empty_documents = 0;  // empty ones are dropped
    int64_t tokens = 0, text_bytes = 0;
    int64_t bad_lines = 0;                    // skipped
    int64_t chats = 0, masked_documents = 0;  // conversations; documents with tokens that have no loss
  };

  int64_t documents() const { return static_cast<int64_t>(table_.size()); }
  int64_t tokens() const { return stats_.tokens; }
  int64_t length(int64_t document) const;  // in tokens
  uint64_t hash(int64_t document) const { return table_[static_cast<size_t>(document)].hash; }
  // Reads out.size() ids of `document`, starting at its token `first`.
  void read(int64_t document, int64_t first, std::span<int32_t> out) const;
  // Whether some tokens have no loss.
  bool masked() const { return !loss_.empty(); }
  // 1 for each of out.size() tokens of `document`, from `first` on, that has a loss, else 0.
  void read_loss(int64_t document, int64_t first, std::span<uint8_t> out) const;
  // Tokens with a loss among `n` of `document`, from `first` on.
  int64_t count_loss(int64_t document, int64_t first, int64_t n) const;
  const Stats& stats() const { return stats_; }
  // Digest over names, sizes and contents of the source's files.
  const std::string& digest() const { return digest_; }
  // Whether the source's files hold the ids.
  bool ready_made() const { return ready_made_; }
  // Digest of the tokenizer that made the ids, or that maps ready-made ids to text.
  const std::string& codec_digest() const { return codec_digest_; }
  // "text: 2,141 files, 41.2 MB, digest ..."
  const std::string& summary() const { return summary_; }
  int64_t vocab_size() const { return vocab_size_; }
  // How the files were read: "jsonl text_key=text", with the number of bad lines if any were skipped.
  const std::string& made_by() const { return made_by_; }

 private:
  friend class TokenStoreBuilder;
  struct Segment {
    int64_t first_token;
    std::span<const std::byte> bytes;
    size_t map;  // in maps_
  };
  uint64_t place(int64_t document, int64_t first, size_t n) const;  // of tokens of a document in the stream; checked
  std::vector<MappedFile> maps_;
  std::vector<Segment> segments_;  // sorted by first_token
  std::span<const DocumentEntry> table_;
  std::span<const std::byte> loss_;  // a bit a token, the lowest first; empty: all have a loss
  int token_bytes_ = 2;
  bool ready_made_ = false;
  int64_t vocab_size_ = 0;
  Stats stats_;
  std::string digest_, codec_digest_, summary_, made_by_;
};

// Opens the token index of `source`, or builds it if `cache_folder` (created if missing) has none for these files, options and tokenizer.
// Texts are tokenised on `threads` threads, with progress in the log; a .bin source only gets a document table. Files whose times changed
// are digested again before anything is rebuilt; a damaged index is detected (checksums up to 256 MiB, sizes and bounds beyond) and
// rebuilt. Skipped bad lines are reported as a warning every time. Processes that open the same index concurrently wait for the first
// one. Error if there is no document.
std::shared_ptr<const TokenStore> open_token_store(const DocumentSource& source, const TextCodec& codec, const std::string& cache_folder,
                                                   int threads);

// Deletes the halves of indices whose builders were killed.
void remove_index_leftovers(const std::string& cache_folder);

}  // namespace halftone
