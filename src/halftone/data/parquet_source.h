#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "halftone/data/parquet_reader.h"
#include "halftone/data/source.h"

namespace halftone {

// Parquet files, read as parquet_columns.h chooses. A document is a row; null and empty texts are empty documents. A shard is a row group:
// the constructor reads every footer, on a few threads, and keeps the numbers of rows only. With SourceOptions.streamed it opens no file,
// and there are no shards. A row without a valid document is bad.
class ParquetSource : public DocumentSource {
 public:
  ParquetSource(FileList files, const SourceOptions& options);
  std::string kind() const override { return "parquet"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(shards_.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override;
  void read_file(size_t file, const DocumentVisitor& visit) const override;

 private:
  struct Shard {
    uint32_t file;
    int32_t group;
  };
  std::unique_ptr<ParquetReader> open(size_t file) const;
  void read_group(ParquetReader& reader, size_t file, int group, const DocumentVisitor& visit) const;
  SourceOptions options_;
  std::vector<Shard> shards_;
  std::vector<int32_t> groups_;  // of each file
  // Open files that no thread reads, the one used last at the back.
  mutable std::mutex mutex_;
  mutable std::deque<std::pair<size_t, std::unique_ptr<ParquetReader>>> idle_;
};

}  // namespace halftone
