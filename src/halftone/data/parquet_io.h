#pragma once
// For parquet_*.cpp only: Arrow's headers are slow to compile.
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/util/future.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>

#include "halftone/storage/byte_file.h"

namespace halftone {

// A memory pool that refuses to hold more than `limit` bytes at a time.
class CappedPool : public arrow::MemoryPool {
 public:
  explicit CappedPool(int64_t limit) : limit_(limit) {}
  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override;
  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** buffer) override;
  void Free(uint8_t* buffer, int64_t size, int64_t alignment) override;
  int64_t bytes_allocated() const override { return used_; }
  int64_t max_memory() const override { return most_; }
  int64_t total_bytes_allocated() const override { return total_; }
  int64_t num_allocations() const override { return count_; }
  std::string backend_name() const override { return base_->backend_name(); }

 private:
  arrow::Status take(int64_t size);
  arrow::MemoryPool* base_ = arrow::default_memory_pool();
  const int64_t limit_;
  std::atomic<int64_t> used_{0}, most_{0}, total_{0}, count_{0};
};

// A ByteFile for Arrow, with the end of the file read ahead: the footer of most files, and the whole of a small one. All reads run on the
// calling thread, the asynchronous ones too, so that Arrow starts no threads. An exception of a read reaches the caller of Arrow through
// rethrow().
class ParquetBytes : public arrow::io::RandomAccessFile {
 public:
  ParquetBytes(std::shared_ptr<const ByteFile> file, arrow::MemoryPool* pool);
  // The footer's size as the end of the file states it. Error for what is no Parquet file, or one with an encrypted footer.
  void check_footer(int64_t most_bytes) const;
  bool remote() const { return remote_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  arrow::Status Close() override { return arrow::Status::OK(); }
  bool closed() const override { return false; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t position) override;
  arrow::Result<int64_t> GetSize() override { return size_; }
  arrow::Result<int64_t> Read(int64_t size, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t size) override;
  using RandomAccessFile::ReadAt;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t size, bool allow_short_read, void* out) override;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t size, void* out) override { return ReadAt(position, size, true, out); }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t size, bool allow_short_read) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t size) override { return ReadAt(position, size, true); }
  using RandomAccessFile::ReadAsync;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext& context, int64_t position, int64_t size,
                                                          bool allow_short_read) override;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext& context, int64_t position, int64_t size) override {
    return ReadAsync(context, position, size, true);
  }

 private:
  std::shared_ptr<const ByteFile> file_;
  arrow::MemoryPool* pool_;
  bool remote_;
  int64_t size_, at_ = 0, tail_begin_ = 0;
  std::string tail_;
  std::exception_ptr error_;
};

}  // namespace halftone
