#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

// Read-only memory map of an entire file; the kernel loads pages on access, so that size costs no memory.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error naming the file when it can not be opened.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  // Reports that `size` consecutive bytes were read: from time to time drops the pages read so far from the process (not from the page
  // cache), so that resident memory stays small however much is read. Thread-safe; other readers fault the pages back in.
  void touched(size_t size) const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  mutable std::atomic<size_t> touched_{0};
};

// Open file with positional reads; thread-safe.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  // Up to `size` bytes from `offset`; fewer only at the end of the file.
  size_t read(int64_t offset, char* out, size_t size) const;
  // Exactly `size` bytes; Error if the file is shorter, because it changed since it was listed.
  void read_exactly(int64_t offset, char* out, size_t size) const;
  int64_t size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

// A file that appears under its name only when complete: written next to it as <path>.tmp.<pid>, then flushed and renamed by commit().
// Without commit it leaves nothing behind. A symbolic link stays and its target is replaced; anything but a regular file (a folder, a
// device, a pipe) is refused. Every failure is an Error naming path and cause.
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

// The full contents of a small file.
std::string read_file(const std::string& path, int64_t limit);

}  // namespace halftone
