#include "halftone/data/parquet_reader.h"

#include <arrow/record_batch.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/parquet_columns.h"
#include "halftone/data/parquet_io.h"
#include "halftone/data/parquet_values.h"
#include "halftone/data/row_document.h"

namespace halftone {
namespace {

constexpr int64_t kMostFooter = int64_t{64} << 20;
constexpr int64_t kMoreMemory = int64_t{256} << 20;
constexpr int64_t kMostExpanded = int64_t{1} << 30, kMostExpansion = int64_t{64} << 10;
constexpr int64_t kBatchBytes = int64_t{1} << 20, kMostBatchRows = 1024;
constexpr int64_t kReadBytes = int64_t{1} << 20;     // of a column at a time
constexpr int64_t kMostFetched = int64_t{64} << 20;  // a remote row group up to this size is fetched at once

// Arrow's messages may have several lines, and quote the file.
std::string one_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return is_valid_utf8(text) ? excerpt(text) : "damaged";
}

parquet::ReaderProperties reading(arrow::MemoryPool* pool) {
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();
  properties.set_buffer_size(kReadBytes);
  properties.set_page_checksum_verification(true);
  return properties;
}

}  // namespace

class ParquetReader::Impl {
 public:
  Impl(std::shared_ptr<const ByteFile> file, const SourceOptions& options, bool whole_rows)
      : options_(options),
        path_(file->path()),
        file_bytes_(file->size()),
        pool_(4 * options.max_document_bytes + kMoreMemory),
        bytes_(std::make_shared<ParquetBytes>(std::move(file), &pool_)),
        row_document_(options) {
    bytes_->check_footer(kMostFooter);
    const std::string place = path_ + ": Parquet footer";
    calling(place, [&] {
      parquet::arrow::FileReaderBuilder builder;
      PARQUET_THROW_NOT_OK(builder.Open(bytes_, reading(&pool_)));
      parquet::ArrowReaderProperties properties(false);
      properties.set_pre_buffer(false);
      builder.memory_pool(&pool_)->properties(properties);
      PARQUET_THROW_NOT_OK(builder.Build(&reader_));
      metadata_ = reader_->parquet_reader()->metadata();
    });
    columns_ = whole_rows ? all_columns() : choose_columns(reader_->manifest(), options_, path_);
    int64_t row = 0;
    for (int g = 0; g < metadata_->num_row_groups(); ++g) {
      int64_t rows = 0;
      calling(place, [&] { rows = metadata_->RowGroup(g)->num_rows(); });
      check(rows >= 0 && rows <= INT64_MAX - row, "{}: row group {} states {} rows: the file is damaged", path_, g, rows);
      first_row_.push_back(row);
      row += rows;
    }
    first_row_.push_back(row);
  }

  int groups() const { return static_cast<int>(first_row_.size()) - 1; }
  int64_t rows(int group) const { return first_row_.at(static_cast<size_t>(group) + 1) - first_row_[static_cast<size_t>(group)]; }

  void read(int group, const DocumentVisitor& visit, const BadRow& bad) {
    read_batches(group, [&](const arrow::RecordBatch& batch, int64_t first, const std::string& place) {
      visit_rows(batch, first, place, visit, bad);
    });
  }

  void read_rows(int group, const std::function<void(int64_t, nlohmann::ordered_json)>& visit) {
    read_batches(group, [&](const arrow::RecordBatch& batch, int64_t first, const std::string&) {
      const auto columns = batch.columns();
      for (int64_t i = 0; i < batch.num_rows(); ++i) {
        nlohmann::ordered_json row;
        try {
          row = row_of(batch, columns, i);
        } catch (const Error& error) {
          fail("{}: row {}: {}", path_, first + i, error.what());
        }
        visit(first + i, std::move(row));
      }
    });
  }

 private:
  ParquetColumns all_columns() const {
    ParquetColumns all;
    all.kind = ParquetColumns::Kind::rows, all.names = "all";
    for (int leaf = 0; leaf < metadata_->num_columns(); ++leaf) all.leaves.push_back(leaf);
    return all;
  }

  template <class Visit>
  void read_batches(int group, const Visit& visit) {
    check(group >= 0 && group < groups(), "{}: row group {} of {}: did the file change?", path_, group, groups());
    const std::string place = fmt::format("{}: row group {}, column {}", path_, group, columns_.names);
    std::unique_ptr<arrow::RecordBatchReader> batches;
    calling(place, [&] { batches = open(group); });
    expanded_ = 0;
    int64_t row = first_row_[static_cast<size_t>(group)];
    const int64_t end = row + rows(group);
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> batch;
      calling(place, [&] {
        PARQUET_THROW_NOT_OK(batches->ReadNext(&batch));
        if (batch != nullptr) PARQUET_THROW_NOT_OK(batch->Validate());
      });
      if (batch == nullptr) break;
      check(batch->num_rows() <= end - row, "{}: holds more than the {} rows that the footer states", place, rows(group));
      visit(*batch, row, place);
      row += batch->num_rows();
    }
    batches.reset();
    if (bytes_->remote()) calling(place, [&] { fetch({}); });
    check(row == end, "{}: ends after {} of {} rows: the file is damaged", place, rows(group) - (end - row), rows(group));
  }

  // Runs calls into Arrow, which throw or return a status: as one-line errors.
  template <class F>
  void calling(const std::string& place, F&& call) {
    std::string reason;
    try {
      return call();
    } catch (const Error&) {
      throw;
    } catch (const parquet::ParquetStatusException& error) {
      reason = error.status().message();
    } catch (const std::exception& error) {  // ParquetException, bad_alloc, length_error
      reason = error.what();
    }
    bytes_->rethrow();
    fail("{}: {}", place, one_line(reason));
  }

  std::unique_ptr<arrow::RecordBatchReader> open(int group) {
    const auto metadata = metadata_->RowGroup(group);
    int64_t stored = 0, decoded = 0;
    for (const int leaf : columns_.leaves) {
      const auto chunk = metadata->ColumnChunk(leaf);
      const int64_t begin = chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0
                                ? std::min(chunk->dictionary_page_offset(), chunk->data_page_offset())
                                : chunk->data_page_offset();
      const int64_t size = chunk->total_compressed_size();
      check(begin >= 0 && size >= 0 && begin <= file_bytes_ - size,
            "{}: row group {}: column {} is said to be bytes {} to {} of {}: the file is cut short or damaged", path_, group,
            one_line(chunk->path_in_schema()->ToDotString()), begin, static_cast<uint64_t>(begin) + static_cast<uint64_t>(size),
            file_bytes_);
      stored += size;
      decoded += std::clamp<int64_t>(chunk->total_uncompressed_size(), 0, INT32_MAX);
    }
    if (bytes_->remote() && stored <= kMostFetched) fetch({group});
    const int64_t row_bytes = std::max<int64_t>(1, decoded / std::max<int64_t>(1, metadata->num_rows()));
    reader_->set_batch_size(std::clamp<int64_t>(kBatchBytes / row_bytes, 1, kMostBatchRows));
    auto batches = reader_->GetRecordBatchReader({group}, columns_.leaves);
    PARQUET_THROW_NOT_OK(batches.status());
    return std::move(*batches);
  }

  // Reads the columns of the row groups into memory, in few large pieces; frees those of the last call.
  void fetch(const std::vector<int>& groups) {
    reader_->parquet_reader()->PreBuffer(groups, columns_.leaves, arrow::io::IOContext(&pool_), arrow::io::CacheOptions::Defaults());
  }

  void expand(size_t bytes, const std::string& place) {
    expanded_ += static_cast<int64_t>(bytes) + 1;
    check(expanded_ <= kMostExpanded + kMostExpansion * file_bytes_, "{}: expands to more than {} bytes, {} for every byte of the file",
          place, expanded_, kMostExpansion);
  }

  void visit_rows(const arrow::RecordBatch& batch, int64_t first, const std::string& place, const DocumentVisitor& visit,
                  const BadRow& bad) {
    std::vector<std::shared_ptr<arrow::Array>> columns = batch.columns();
    check(!columns.empty(), "{}: no column was read", place);
    // The structs around a nested text; where one is null, the text is.
    std::vector<std::shared_ptr<arrow::Array>> outer;
    for (size_t d = 0; d < columns_.depth && columns_.kind == ParquetColumns::Kind::text; ++d) {
      outer.push_back(columns[0]);
      columns[0] = static_cast<const arrow::StructArray&>(*outer.back()).field(0);
    }
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      Document own;
      const Document* document = &own;
      try {
        if (columns_.kind == ParquetColumns::Kind::text) {
          const bool null = std::any_of(outer.begin(), outer.end(), [i](const auto& array) { return array->IsNull(i); });
          set_text(null ? std::string_view() : text_at(*columns[0], i), own);
        } else if (columns_.kind == ParquetColumns::Kind::ids) {
          ids_at(*columns[0], i, options_.vocab_size, options_.max_document_bytes / int64_t{sizeof(int32_t)}, ids_);
          own.kind = Document::Kind::ids;
          own.ids = ids_;
        } else {
          document = &row_document_.read(row_of(batch, columns, i));
        }
      } catch (const Error& error) {
        expand(0, place);
        bad(first + i, error.what());
        continue;
      }
      expand(document->text.size() + document->ids.size_bytes(), place);
      visit(*document);
    }
  }

  void set_text(std::string_view text, Document& out) const {
    if (static_cast<int64_t>(text.size()) > options_.max_document_bytes) {
      fail("a document of {} bytes: expected at most {} (dataloader.max_document_mib)", with_commas(static_cast<int64_t>(text.size())),
           with_commas(options_.max_document_bytes));
    }
    if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) fail("{}", not_utf8(text, valid));
    out.text = text;
  }

  nlohmann::ordered_json row_of(const arrow::RecordBatch& batch, const std::vector<std::shared_ptr<arrow::Array>>& columns,
                                int64_t i) const {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    int64_t bytes_left = options_.max_document_bytes;
    for (size_t c = 0; c < columns.size(); ++c) {
      auto value = json_at(*columns[c], i, bytes_left);
      if (!value.is_null()) row[batch.schema()->field(static_cast<int>(c))->name()] = std::move(value);
    }
    return row;
  }

  const SourceOptions& options_;
  std::string path_;
  int64_t file_bytes_;
  CappedPool pool_;  // outlives everything that allocates
  std::shared_ptr<ParquetBytes> bytes_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  ParquetColumns columns_;
  std::vector<int64_t> first_row_;  // of each row group, and behind the last
  RowDocument row_document_;
  std::vector<int32_t> ids_;
  int64_t expanded_ = 0;
};

ParquetReader::ParquetReader(std::shared_ptr<const ByteFile> file, const SourceOptions& options, bool whole_rows)
    : impl_(std::make_unique<Impl>(std::move(file), options, whole_rows)) {}
ParquetReader::~ParquetReader() = default;
int ParquetReader::groups() const { return impl_->groups(); }
int64_t ParquetReader::rows(int group) const { return impl_->rows(group); }
void ParquetReader::read(int group, const DocumentVisitor& visit, const BadRow& bad) { impl_->read(group, visit, bad); }
void ParquetReader::read_rows(int group, const std::function<void(int64_t, nlohmann::ordered_json)>& visit) {
  impl_->read_rows(group, visit);
}

}  // namespace halftone
