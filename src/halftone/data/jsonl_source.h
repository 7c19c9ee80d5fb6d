#pragma once
#include <string>
#include <vector>

#include "halftone/data/shards.h"
#include "halftone/data/source.h"

namespace halftone {

// JSON lines: one document per line (jsonl_line.h, row_document.h), blank lines skipped; or files that are one JSON array of documents.
// Plain or compressed (byte_stream.h), local or remote. Lines and elements without a document are bad.
class JsonlSource : public DocumentSource {
 public:
  JsonlSource(FileList files, SourceOptions options);
  std::string kind() const override { return "jsonl"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(shards_.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override;
  void read_file(size_t file, const DocumentVisitor& visit) const override;

 private:
  void read_piece(const Piece& piece, const DocumentVisitor& visit) const;
  SourceOptions options_;
  std::vector<std::vector<Piece>> shards_;
};

}  // namespace halftone
