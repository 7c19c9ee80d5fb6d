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

// Row of the document table: where the document ends in the token stream, and a hash of its text by which held-out documents
// are chosen: of the bytes that its ids stand for, so that it is the same from every kind of source.
struct DocumentEntry {
  uint64_t end;
  uint64_t hash;
};
static_assert(sizeof(DocumentEntry) == 16);

// A corpus as token ids with random access by document. Everything is memory-mapped: the memory used does not grow with
// the corpus. Thread-safe.
class TokenStore {
 public:
  struct Stats {
    int64_t documents = 0, empty_documents = 0;  // empty ones are left out
    int64_t tokens = 0, text_bytes = 0;
    int64_t bad_lines = 0;  // skipped
  };

  int64_t documents() const { return static_cast<int64_t>(table_.size()); }
  int64_t tokens() const { return stats_.tokens; }
  int64_t length(int64_t document) const;  // in tokens
  uint64_t hash(int64_t document) const { return table_[static_cast<size_t>(document)].hash; }
  // out.size() ids of `document` from its token number `first`.
  void read(int64_t document, int64_t first, std::span<int32_t> out) const;
  const Stats& stats() const { return stats_; }
  // Digest over names, sizes and contents of the source's files.
  const std::string& digest() const { return digest_; }
  // Whether the source's files hold the ids.
  bool ready_made() const { return ready_made_; }
  // Digest of the tokenizer: of what made the ids, or of what tells the text of ready-made ones.
  const std::string& codec_digest() const { return codec_digest_; }
  // "text: 2,141 files, 41.2 MB, digest ..."
  const std::string& summary() const { return summary_; }
  int64_t vocab_size() const { return vocab_size_; }
  // What made documents of the files: "jsonl text_key=text", with the number of bad lines where such were skipped.
  const std::string& made_by() const { return made_by_; }

 private:
  friend class TokenStoreBuilder;
  struct Segment {
    int64_t first_token;
    std::span<const std::byte> bytes;
    size_t map;  // in maps_
  };
  std::vector<MappedFile> maps_;
  std::vector<Segment> segments_;  // by first_token
  std::span<const DocumentEntry> table_;
  int token_bytes_ = 2;
  bool ready_made_ = false;
  int64_t vocab_size_ = 0;
  Stats stats_;
  std::string digest_, codec_digest_, summary_, made_by_;
};

// Opens the token index of `source`, building it when there is none in `cache_folder` (created if missing) that belongs
// to these files, options and tokenizer. Texts are tokenised on `threads` threads, with progress in the log; a .bin source
// gets a document table only. Files whose times changed are digested again before anything is rebuilt; a damaged index
// is noticed (checksums up to 256 MiB, sizes and bounds beyond) and built again. Bad lines that were skipped are a warning every time.
// Processes that ask for the same index at the same time wait for the first. No document at all is an Error.
std::shared_ptr<const TokenStore> open_token_store(const DocumentSource& source, const TextCodec& codec, const std::string& cache_folder,
                                                   int threads);

// Deletes the halves of indices whose builders were killed.
void remove_index_leftovers(const std::string& cache_folder);

}  // namespace halftone
