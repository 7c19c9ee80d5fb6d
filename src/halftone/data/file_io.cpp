#include "halftone/data/file_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr int kMostLinks = 40;  // as many as the kernel follows

int open_for_reading(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "cannot read {}: {}", path, std::strerror(errno));
  return fd;
}

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)                    ? "a folder"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
         : S_ISFIFO(mode)                 ? "a pipe"
         : S_ISSOCK(mode)                 ? "a socket"
                                          : "something else";
}

// The path that a rename to `path` may replace: follows symbolic links, which stay, to a regular file or nothing.
std::string replaceable(std::string path) {
  check(!path.empty(), "cannot write a file: expected its name, found an empty one");
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  check(!exists || S_ISREG(info.st_mode), "cannot write {}: expected a regular file or a new name, found {}; choose another name", path,
        kind_of(info.st_mode));
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    check(!error && links < kMostLinks, "cannot write {}: {}", path, error ? error.message() : "its symbolic links lead in a circle");
    target = target.parent_path() / next;
  }
  return target.string();
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const int fd = open_for_reading(path);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail("cannot read {}: not a regular file", path);
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int error = errno;
    ::close(fd);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      fail("cannot map {} ({} bytes): {}", path, size_, std::strerror(error));
    }
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}
MappedFile::MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::touched(size_t size) const {
  constexpr size_t kLimit = size_t{8} << 20, kFaultAround = size_t{64} << 10;  // one fault also maps the surrounding pages
  size = std::max(size, kFaultAround);
  if (touched_.fetch_add(size, std::memory_order_relaxed) + size < kLimit) return;
  touched_.store(0, std::memory_order_relaxed);
  ::madvise(data_, size_, MADV_DONTNEED);
}

InputFile::InputFile(const std::string& path) : path_(path), fd_(open_for_reading(path)) {}
InputFile::~InputFile() { ::close(fd_); }

int64_t InputFile::size() const {
  struct stat info {};
  check(::fstat(fd_, &info) == 0, "cannot read {}: {}", path_, std::strerror(errno));
  return info.st_size;
}

size_t InputFile::read(int64_t offset, char* out, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd_, out + done, size - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void InputFile::read_exactly(int64_t offset, char* out, size_t size) const {
  const size_t found = read(offset, out, size);
  check(found == size, "{}: expected {} bytes at offset {}, found {}: the file changed while it was read", path_, size, offset, found);
}

AtomicFile::AtomicFile(std::string path) : path_(replaceable(std::move(path))), temporary_(fmt::format("{}.tmp.{}", path_, ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(fd_ >= 0, "cannot write {}: {}", path_, std::strerror(errno));
  buffer_.reserve(kChunk);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write_through(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd_, data, size);
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "cannot write {}: {}", path_, n < 0 ? std::strerror(errno) : "no progress");
    data += n;
    size -= static_cast<size_t>(n);
  }
}

void AtomicFile::write(const void* data, size_t size) {
  size_ += static_cast<int64_t>(size);
  if (buffer_.size() + size > kChunk) flush();
  if (size >= kChunk) return write_through(static_cast<const char*>(data), size);
  buffer_.append(static_cast<const char*>(data), size);
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::commit() {
  flush();
  // Not within check(): its arguments may be evaluated before the call that sets errno.
  const bool written = ::fsync(fd_) == 0 && ::rename(temporary_.c_str(), path_.c_str()) == 0;
  check(written, "cannot write {}: {}", path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int folder_fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {  // makes the new name durable; some network file systems refuse, which is harmless
    ::fsync(folder_fd);
    ::close(folder_fd);
  }
}

std::string read_file(const std::string& path, int64_t limit) {
  const InputFile file(path);
  std::string out;
  char block[1 << 16];
  for (;;) {
    const size_t n = file.read(static_cast<int64_t>(out.size()), block, sizeof block);
    out.append(block, n);
    check(static_cast<int64_t>(out.size()) <= limit, "{}: larger than the {} bytes expected", path, limit);
    if (n < sizeof block) return out;
  }
}

}  // namespace halftone
