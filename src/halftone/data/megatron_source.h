#pragma once
#include <string>

#include "halftone/data/megatron_index.h"
#include "halftone/data/source.h"

namespace halftone {

// prefix.idx and prefix.bin of `pattern`: a prefix, one of both files, a folder, or a glob. Error if one of the two is missing.
FileList find_megatron(const std::string& pattern);

// Pre-tokenised sets of Megatron-LM (megatron_index.h). A document is what Megatron calls one: several sequences, joined. uint16 and int32
// are used in place where the index describes the whole file in order; other integers are converted.
class MegatronSource : public DocumentSource {
 public:
  MegatronSource(FileList files, const SourceOptions& options);
  std::string kind() const override { return "megatron"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(files_.files.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override { read_file(static_cast<size_t>(shard), visit); }
  // For a .bin file; an index has no documents of its own.
  void read_file(size_t file, const DocumentVisitor& visit) const override;
  int stored_token_bytes() const override { return stored_bytes_; }
  StoredRange stored_range(size_t file) const override;

 private:
  int64_t vocab_size_, longest_;
  int stored_bytes_ = 0;
};

}  // namespace halftone
