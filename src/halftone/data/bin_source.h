#pragma once
#include <string>
#include <vector>

#include "halftone/data/bin_format.h"
#include "halftone/data/file_io.h"
#include "halftone/data/source.h"

namespace halftone {

// Pre-tokenised .bin files (bin_format.h), memory-mapped and used in place.
class BinSource : public DocumentSource {
 public:
  BinSource(FileList files, int token_bytes, int64_t vocab_size, DocumentEnd end);
  std::string kind() const override { return "bin"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(files_.files.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override;
  void read_file(size_t file, const DocumentVisitor& visit) const override;
  int stored_token_bytes() const override { return token_bytes_; }

 private:
  int token_bytes_;
  int64_t vocab_size_;
  DocumentEnd end_;
};

}  // namespace halftone
