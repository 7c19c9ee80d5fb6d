#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/chat/conversation.h"
#include "halftone/data/bad_lines.h"
#include "halftone/data/file_list.h"

namespace halftone {

// One document as its source holds it: text to tokenise, a rendered conversation, ids, or ids stored in a file at their width. Or a skipped
// line.
struct Document {
  enum class Kind { text, chat, ids, stored, bad } kind = Kind::text;
  std::string_view text;               // text, chat
  std::span<const ByteRange> learned;  // chat: bytes of the text whose tokens have a loss
  std::span<const int32_t> ids;
  std::span<const uint8_t> loss;  // ids: 1 for each token with a loss; empty: all have one
  std::span<const std::byte> stored;
  const BadLine* bad = nullptr;
};
using DocumentVisitor = std::function<void(const Document&)>;

// Bytes of a file that are ids.
struct StoredRange {
  int64_t first, bytes;
};

// Source of documents. It is split into shards (whole small files, or ranges of large ones), so that reading is parallel and nothing has
// to fit in memory; shards in order, and documents in order within a shard, are the corpus's natural order. For a format with row groups,
// frames or an index, these are its shards. A source need not support random access: token_store.h adds it.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // Registered name: "text", "jsonl", "parquet", ...
  virtual std::string kind() const = 0;
  const FileList& files() const { return files_; }
  // Everything besides files, tokenizer and bad lines that determines the documents; part of the token cache's key.
  virtual std::string options() const = 0;
  // The same for what decides how a conversation becomes a document; empty where none is read (describe_chat in row_document.h).
  const std::string& chat() const { return chat_; }
  virtual int64_t shard_count() const = 0;
  // Thread-safe. The visitor's arguments are valid only during the call. Errors name file and position.
  virtual void read_shard(int64_t shard, const DocumentVisitor& visit) const = 0;
  // All documents of one file of files(), in order: the same as in its shards. For streams, which open a file when they come to it.
  virtual void read_file(size_t file, const DocumentVisitor& visit) const = 0;
  // Bytes per id (2 or 4) if the files hold only ids and are used in place; then every file is one shard with contiguous documents. 0 for
  // other sources.
  virtual int stored_token_bytes() const { return 0; }
  // Where the ids lie in such a file.
  virtual StoredRange stored_range(size_t file) const { return {0, files_.files.at(file).size}; }
  // Whether lines without a document are passed to the visitor as such; otherwise they are errors.
  bool skips_bad_lines() const { return skip_bad_lines_; }

 protected:
  explicit DocumentSource(FileList files, bool skip_bad_lines = false) : files_(std::move(files)), skip_bad_lines_(skip_bad_lines) {}
  void bad_line(const BadLine& line, const DocumentVisitor& visit) const;
  FileList files_;
  std::string chat_;

 private:
  bool skip_bad_lines_;
};

struct SourceOptions {
  std::string dataset;                                // kind of data (docs/data.md); auto: by suffix and content
  std::string path;                                   // file, folder or glob, local or remote; empty only for names that imply files
  std::string path_field = "dataset_path";            // option that gives the path, for messages
  bool streamed = false;                              // only read_file is used: no file is opened before it is read
  std::string text_key = "text";                      // jsonl, parquet: field or column with the text; a.b for a nested one
  std::string subset, split = "train";                // of a folder of a Hugging Face data set
  ChatOptions chat;                                   // jsonl, parquet: rows without the text that are conversations
  std::shared_ptr<const ChatTemplate> chat_template;  // null: a conversation is an error
  std::string chat_template_problem;                  // why it is null, if the tokenizer has one
  int64_t max_document_bytes = int64_t{256} << 20;    // a larger document is an error
  std::string text_split = "file";                    // text: what a document is: file, line, blank_line
  std::string on_bad_line = "error";                  // jsonl, text, parquet: error, skip
  std::string token_dtype = "uint16";                 // bin: uint16, uint32
  int64_t vocab_size = 0;                             // ids of pre-tokenised documents must be below it
  std::optional<int32_t> eos_id;                      // bin: documents end here
  std::optional<int32_t> bos_id;                      // bin: if equal to EOS, one in front begins a document
};

// Error for unknown names, missing paths and files that do not match the name.
std::unique_ptr<DocumentSource> open_source(const SourceOptions& options);

// 1,234,567
std::string with_commas(int64_t n);

// "text: 2,141 files, 41.2 MB, digest 0123..."
std::string source_summary(const DocumentSource& source, std::string_view digest);

}  // namespace halftone
