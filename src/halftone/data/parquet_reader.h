#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "halftone/data/source.h"
#include "halftone/storage/byte_file.h"

namespace halftone {

// One open Parquet file (https://parquet.apache.org/docs/file-format). Reading runs on the calling thread; not thread-safe. Errors name the
// file, and where it applies the row group and the columns.
//
// Limits, because files are untrusted: the buffers of one reader hold at most four documents of max_document_bytes and 256 MiB more; a
// footer has at most 64 MiB; a row group yields at most 1 GiB and 64 KiB for every byte of the file.
class ParquetReader {
 public:
  // Reads the footer and chooses the columns (parquet_columns.h); `whole_rows`: all of them, for read_rows(). `options` outlives the
  // reader.
  ParquetReader(std::shared_ptr<const ByteFile> file, const SourceOptions& options, bool whole_rows = false);
  ~ParquetReader();
  int groups() const;
  int64_t rows(int group) const;
  // Called with a row that holds no valid document: its number in the file, from 0, and the reason.
  using BadRow = std::function<void(int64_t row, const std::string& reason)>;
  // Visits the documents of a row group in order, with views into the decoded columns. The batches of rows that are decoded at a time
  // hold about 1 MiB.
  void read(int group, const DocumentVisitor& visit, const BadRow& bad);
  // The rows of a row group as objects without the fields that are null; each with its number in the file, from 0.
  void read_rows(int group, const std::function<void(int64_t row, nlohmann::ordered_json object)>& visit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halftone
