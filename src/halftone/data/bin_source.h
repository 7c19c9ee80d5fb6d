#pragma once
#include <string>
#include <vector>

#include "halftone/data/bin_format.h"
#include "halftone/data/file_io.h"
#include "halftone/data/source.h"

namespace halftone {

// Pre-tokenised .bin files (bin_format.h), memory-mapped and used in place; remote ones are copied to the disk cache first.
class BinSource : public DocumentSource {
 public:
  // `token_bytes` per id where the first file has no header that says so. Error if it has, and others have another width.
  BinSource(FileList files, int token_bytes, int64_t vocab_size, DocumentEnd end);
  std::string kind() const override { return "bin"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(files_.files.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override;
  void read_file(size_t file, const DocumentVisitor& visit) const override;
  int stored_token_bytes() const override { return token_bytes_; }
  StoredRange stored_range(size_t file) const override;

 private:
  BinLayout layout(size_t file) const;
  int token_bytes_;
  int64_t vocab_size_;
  DocumentEnd end_;
};

}  // namespace halftone
