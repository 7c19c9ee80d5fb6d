#include "halftone/data/parquet_io.h"

#include <arrow/buffer.h>

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/data/packed_file.h"

namespace halftone {
namespace {

// A remote file up to this size takes one request.
constexpr int64_t kRemoteTail = int64_t{1} << 20, kLocalTail = int64_t{64} << 10;
constexpr int64_t kFooterEnd = 8;  // its size as a little-endian uint32, and the magic

}  // namespace

arrow::Status CappedPool::take(int64_t size) {
  const int64_t used = used_ += size;
  if (used > limit_) {
    used_ -= size;
    return arrow::Status::OutOfMemory("the file needs more than the limit of ", limit_ >> 20, " MiB of memory");
  }
  if (size > 0) total_ += size, ++count_;
  for (int64_t most = most_; used > most && !most_.compare_exchange_weak(most, used);) {}
  return arrow::Status::OK();
}

arrow::Status CappedPool::Allocate(int64_t size, int64_t alignment, uint8_t** out) {
  if (size < 0) return arrow::Status::Invalid("a buffer of negative size");
  ARROW_RETURN_NOT_OK(take(size));
  arrow::Status status = base_->Allocate(size, alignment, out);
  if (!status.ok()) used_ -= size;
  return status;
}

arrow::Status CappedPool::Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** buffer) {
  if (new_size < 0) return arrow::Status::Invalid("a buffer of negative size");
  ARROW_RETURN_NOT_OK(take(new_size - old_size));
  arrow::Status status = base_->Reallocate(old_size, new_size, alignment, buffer);
  if (!status.ok()) used_ -= new_size - old_size;
  return status;
}

void CappedPool::Free(uint8_t* buffer, int64_t size, int64_t alignment) {
  base_->Free(buffer, size, alignment);
  used_ -= size;
}

ParquetBytes::ParquetBytes(std::shared_ptr<const ByteFile> file, arrow::MemoryPool* pool)
    : file_(std::move(file)), pool_(pool), remote_(is_remote(file_->path())), size_(file_->size()) {
  const int64_t tail = std::min(size_, remote_ ? kRemoteTail : kLocalTail);
  std::string bytes(static_cast<size_t>(tail), '\0');
  const int64_t found = ReadAt(size_ - tail, tail, true, bytes.data()).ValueOr(-1);
  rethrow();
  check(found == tail, "{}: {} bytes are readable, its size is {}: did it change while it was read?", file_->path(),
        size_ - tail + std::max<int64_t>(found, 0), size_);
  tail_ = std::move(bytes);
  tail_begin_ = size_ - tail;
}

void ParquetBytes::check_footer(int64_t most_bytes) const {
  const std::string& path = file_->path();
  const std::string_view magic = std::string_view(tail_).substr(tail_.size() - std::min<size_t>(tail_.size(), 4));
  check(magic != "PARE", "{}: the Parquet file is encrypted: decrypt it first", path);
  if (magic != "PAR1") refuse_packed(first_bytes(path), path, "Parquet");
  check(magic == "PAR1" && size_ >= 12, "{}: no Parquet file, or one cut short: its {} bytes do not end in PAR1", path, size_);
  uint32_t footer = 0;  // x86-64 is little-endian
  std::memcpy(&footer, tail_.data() + tail_.size() - kFooterEnd, sizeof footer);
  check(footer <= size_ - 12, "{}: the Parquet file states a footer of {} bytes, but has {}: it is cut short or damaged", path, footer,
        size_);
  check(footer <= most_bytes, "{}: the Parquet footer has {} bytes: expected at most {}; write fewer row groups or columns", path, footer,
        most_bytes);
}

arrow::Status ParquetBytes::Seek(int64_t position) {
  if (position < 0) return arrow::Status::Invalid("a negative position");
  at_ = position;
  return arrow::Status::OK();
}

arrow::Result<int64_t> ParquetBytes::Read(int64_t size, void* out) {
  ARROW_ASSIGN_OR_RAISE(const int64_t n, ReadAt(at_, size, true, out));
  at_ += n;
  return n;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> ParquetBytes::Read(int64_t size) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, size, true));
  at_ += buffer->size();
  return buffer;
}

arrow::Result<int64_t> ParquetBytes::ReadAt(int64_t position, int64_t size, bool allow_short_read, void* out) {
  if (position < 0 || size < 0 || position > size_) {
    return arrow::Status::IOError(size, " bytes at offset ", position, " lie outside the file of ", size_,
                                  " bytes: it is cut short or damaged");
  }
  const int64_t wanted = std::min(size, size_ - position);
  if (wanted < size && !allow_short_read)
    return arrow::Status::IOError(size, " bytes at offset ", position, " lie beyond the end of the file of ", size_, " bytes");
  if (!tail_.empty() && position >= tail_begin_) {
    std::memcpy(out, tail_.data() + (position - tail_begin_), static_cast<size_t>(wanted));
    return wanted;
  }
  try {
    const auto n = static_cast<int64_t>(file_->read(position, static_cast<char*>(out), static_cast<size_t>(wanted)));
    if (n < wanted) return arrow::Status::IOError("the file ends at byte ", position + n, ", its size was ", size_, ": did it change?");
    return n;
  } catch (const std::exception& error) {
    error_ = std::current_exception();
    return arrow::Status::IOError(error.what());
  }
}

arrow::Result<std::shared_ptr<arrow::Buffer>> ParquetBytes::ReadAt(int64_t position, int64_t size, bool allow_short_read) {
  // A size from the file may exceed the file: nothing is allocated for it.
  const int64_t room = std::clamp<int64_t>(size, 0, std::max<int64_t>(size_ - position, 0));
  ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(room, pool_));
  ARROW_ASSIGN_OR_RAISE(const int64_t n, ReadAt(position, size, allow_short_read, buffer->mutable_data()));
  if (n < room) ARROW_RETURN_NOT_OK(buffer->Resize(n));
  return std::shared_ptr<arrow::Buffer>(std::move(buffer));
}

arrow::Future<std::shared_ptr<arrow::Buffer>> ParquetBytes::ReadAsync(const arrow::io::IOContext&, int64_t position, int64_t size,
                                                                      bool allow_short_read) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, size, allow_short_read));
}

}  // namespace halftone
