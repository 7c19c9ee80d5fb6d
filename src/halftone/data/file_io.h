#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

// Read-only memory map of a whole file; pages are loaded by the kernel when touched, so size is no memory cost.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error naming the file when it can not be opened.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  // Says that `size` bytes in a row were read: now and then the pages read so far leave the process (not the page cache),
  // so that the resident memory stays small however much of the file is read. Thread-safe; other readers fault them back.
  void touched(size_t size) const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  mutable std::atomic<size_t> touched_{0};
};

// Open file read at given offsets; safe from several threads.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  // Up to `size` bytes from `offset`; fewer only at the end of the file.
  size_t read(int64_t offset, char* out, size_t size) const;
  // Exactly `size` bytes; a shorter file (it changed since it was listed) is an Error.
  void read_exactly(int64_t offset, char* out, size_t size) const;
  int64_t size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

// Lines of a file from the first line that starts at or after `begin`, none where that one starts at or after `end`. Memory: the longest
// line.
class LineReader {
 public:
  LineReader(const std::string& path, int64_t begin, int64_t end);
  // Next line without its "\n" or "\r\n", valid until the next call; false at the end of the file.
  bool next(std::string_view& line);
  // Where the line returned last starts.
  int64_t line_offset() const { return line_offset_; }

 private:
  bool fill();
  void skip_tail(int64_t end);
  InputFile file_;
  std::string buffer_;
  size_t used_ = 0, filled_ = 0;
  int64_t buffer_offset_, line_offset_;
  bool end_ = false;
};

// Number (from 1) of the line that holds byte `offset`: for messages.
int64_t line_number(const std::string& path, int64_t offset);

// A file that appears under its name only when complete: written beside it as <path>.tmp.<pid>, flushed to the disk and
// renamed by commit(). Dropped without commit, it leaves nothing behind. A symbolic link stays, its target is replaced; what is no regular
// file (a folder, a device, a pipe) is refused. Every failure is an Error naming path and cause.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t size);
  int64_t size() const { return size_; }
  void commit();
  const std::string& temporary_path() const { return temporary_; }
  void flush();

 private:
  void write_through(const char* data, size_t size);
  std::string path_, temporary_, buffer_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// The whole of a small file.
std::string read_file(const std::string& path, int64_t limit);

}  // namespace halftone
