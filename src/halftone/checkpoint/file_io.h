#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace halftone {

// A file descriptor that is closed when it goes out of scope. Every failure (including a short write on a full disk) is an Error that
// names the path and the system's reason.
class File {
 public:
  static File create(const std::filesystem::path& path);  // truncates an existing file
  // The same, bypassing the page cache if the file system supports it: for large files that are not read soon. write() collects blocks;
  // sync() ends it.
  static File create_direct(const std::filesystem::path& path);
  static File open_append(const std::filesystem::path& path);  // creates the file if missing
  static File open_read(const std::filesystem::path& path);
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  void write(const void* data, size_t bytes);
  // Hints without effect on results: starts flushing what write() has received so far; prefetches what is read soon.
  void start_writing();
  void will_read(uint64_t offset, uint64_t bytes) const;
  // Reads exactly `bytes` bytes at `offset`; the file ending earlier is an error.
  void read_at(void* data, size_t bytes, uint64_t offset) const;
  uint64_t size() const;
  void truncate(uint64_t bytes);
  void sync();   // fsync
  void close();  // reports deferred write errors
  bool is_open() const { return fd_ >= 0; }
  const std::filesystem::path& path() const { return path_; }

 private:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  void put(const void* data, size_t bytes);
  void leave_direct();
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  int fd_ = -1;
  std::unique_ptr<char, Free> direct_;  // bytes not yet written, of a file that bypasses the page cache
  size_t collected_ = 0;
  uint64_t written_ = 0, started_ = 0;  // bytes passed to write(), and of those flushed so far
  std::filesystem::path path_;
};

// mkdir -p; an error names the folder and the reason.
void make_folder(const std::filesystem::path& folder);
// Makes the names inside `folder` durable (fsync of the directory).
void sync_folder(const std::filesystem::path& folder);
// Fails with one line unless files can be created in `folder` (made when missing). A kill leaves the probe, named so with the process id.
inline constexpr const char* kWritableProbe = ".writable-";
void check_writable(const std::filesystem::path& folder);
// The full file as text; Error if larger than `max_bytes`.
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes);
// xxh3-64 of a file, of a text.
uint64_t checksum_of(const std::filesystem::path& path);
uint64_t checksum_of_text(std::string_view text);
// The same of a file's size and of 4 KiB each at its begin, in its middle and at its end.
uint64_t sampled_checksum_of(const std::filesystem::path& path);

}  // namespace halftone
