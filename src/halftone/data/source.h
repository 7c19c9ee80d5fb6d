#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/data/bad_lines.h"
#include "halftone/data/file_list.h"

namespace halftone {

// One document as its source holds it: text to tokenise, ids, or ids that lie in a file in their stored width. Or a line that is skipped.
struct Document {
  enum class Kind { text, ids, stored, bad } kind = Kind::text;
  std::string_view text;
  std::span<const int32_t> ids;
  std::span<const std::byte> stored;
  const BadLine* bad = nullptr;
};
using DocumentVisitor = std::function<void(const Document&)>;

// Where documents come from. A source is cut into shards (whole small files, or ranges of large ones) so that reading
// is parallel and nothing has to fit in memory; shards in order, documents in order within a shard, are the natural order
// of the corpus. A format whose files have row groups, frames or an index of their own makes those its shards.
// Random access is not asked of a source: token_store.h gives it.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // Registered name: "text", "jsonl", "bin".
  virtual std::string kind() const = 0;
  const FileList& files() const { return files_; }
  // Everything besides files, tokenizer and bad lines that decides the documents; part of the key of the token cache.
  virtual std::string options() const = 0;
  virtual int64_t shard_count() const = 0;
  // Thread-safe. What the visitor is given is valid during the call only. Errors name file and place.
  virtual void read_shard(int64_t shard, const DocumentVisitor& visit) const = 0;
  // Bytes per id (2 or 4) when the files hold nothing but ids and are used in place; there every file is one shard, whose
  // documents follow each other without gaps. 0 for other sources.
  virtual int stored_token_bytes() const { return 0; }
  // Whether lines without a document are given to the visitor as such; otherwise they are errors.
  bool skips_bad_lines() const { return skip_bad_lines_; }

 protected:
  explicit DocumentSource(FileList files, bool skip_bad_lines = false) : files_(std::move(files)), skip_bad_lines_(skip_bad_lines) {}
  void bad_line(const BadLine& line, const DocumentVisitor& visit) const;
  FileList files_;

 private:
  bool skip_bad_lines_;
};

struct SourceOptions {
  std::string dataset;                 // registered name (docs/data.md)
  std::string path;                    // file, folder or glob; empty only where the name has files of its own
  std::string text_key = "text";       // jsonl: the field with the text
  std::string text_split = "file";     // text: what a document is: file, line, blank_line
  std::string on_bad_line = "error";   // jsonl, text: error, skip
  std::string token_dtype = "uint16";  // bin: uint16, uint32
  int64_t vocab_size = 0;              // ids of pre-tokenised documents must be below it
  std::optional<int32_t> eos_id;       // bin: documents end here
  std::optional<int32_t> bos_id;       // bin: where it is EOS, one in front begins a document
};

// Throws Error for unknown names, missing paths and files that are not what the name says.
std::unique_ptr<DocumentSource> open_source(const SourceOptions& options);

// 1,234,567
std::string with_commas(int64_t n);

// "text: 2,141 files, 41.2 MB, digest 0123..."
std::string source_summary(const DocumentSource& source, std::string_view digest);

}  // namespace halftone
