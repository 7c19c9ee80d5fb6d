#include "halftone/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

[[noreturn]] void fail_errno(const char* what, const std::filesystem::path& path, int code) {
  const char* hint = code == ENOSPC || code == EDQUOT ? "; free some space or choose another folder" : "";
  fail("cannot {} {}: {}{}", what, path.string(), std::strerror(code), hint);
}

constexpr size_t kDirectBytes = size_t{4} << 20, kDirectAlign = 4096;  // block size of writes that bypass the page cache

int open_or_fail(const std::filesystem::path& path, int flags, const char* what) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_errno(what, path, errno);
  return fd;
}

}  // namespace

File File::create(const std::filesystem::path& path) { return File(open_or_fail(path, O_WRONLY | O_CREAT | O_TRUNC, "create"), path); }
File File::create_direct(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
  if (fd < 0) return create(path);  // unsupported by the file system, or a failure that create() reports
  File file(fd, path);
  file.direct_.reset(static_cast<char*>(std::aligned_alloc(kDirectAlign, kDirectBytes)));
  check(file.direct_ != nullptr, "cannot create {}: out of memory", path.string());
  return file;
}
File File::open_append(const std::filesystem::path& path) { return File(open_or_fail(path, O_WRONLY | O_CREAT | O_APPEND, "open"), path); }
File File::open_read(const std::filesystem::path& path) {
  const int fd = open_or_fail(path, O_RDONLY, "open");
  File file(fd, path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_errno("stat", path, errno);
  check(S_ISREG(info.st_mode), "cannot read {}: it is not a regular file", path.string());
  return file;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      direct_(std::move(other.direct_)),
      collected_(other.collected_),
      written_(other.written_),
      started_(other.started_),
      path_(std::move(other.path_)) {}
File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    direct_ = std::move(other.direct_), collected_ = other.collected_;
    written_ = other.written_, started_ = other.started_;
    path_ = std::move(other.path_);
  }
  return *this;
}
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::write(const void* data, size_t bytes) {
  if (!direct_) return put(data, bytes);
  for (const char* p = static_cast<const char*>(data); bytes > 0;) {
    const size_t n = std::min(bytes, kDirectBytes - collected_);
    std::memcpy(direct_.get() + collected_, p, n);
    p += n, bytes -= n, collected_ += n;
    if (collected_ == kDirectBytes) put(direct_.get(), std::exchange(collected_, 0));
  }
}

void File::put(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, std::min(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && (::fcntl(fd_, F_GETFL) & O_DIRECT) != 0) {  // different rules for addresses and sizes
      ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_DIRECT);
      continue;
    }
    if (n < 0) fail_errno("write", path_, errno);
    if (n == 0) fail_errno("write", path_, ENOSPC);
    p += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

// Writes the last bytes, which do not fill a block.
void File::leave_direct() {
  if (!direct_) return;
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_DIRECT);
  put(direct_.get(), std::exchange(collected_, 0));
  direct_.reset();
}

void File::start_writing() {
  constexpr uint64_t kLeast = uint64_t{4} << 20;
  if (direct_ || written_ - started_ < kLeast) return;
  ::sync_file_range(fd_, static_cast<off_t>(started_), static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE);
  started_ = written_;
}

void File::will_read(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void File::read_at(void* data, size_t bytes, uint64_t offset) const {
  char* p = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, p, std::min(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("read", path_, errno);
    check(n != 0, "{} ends at byte {}, expected {} more bytes: the file is truncated", path_.string(), offset, bytes);
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

uint64_t File::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail_errno("stat", path_, errno);
  return static_cast<uint64_t>(info.st_size);
}

void File::truncate(uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail_errno("truncate", path_, errno);
}
void File::sync() {
  leave_direct();
  if (::fsync(fd_) != 0) fail_errno("write", path_, errno);
}
void File::close() {
  if (fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail_errno("write", path_, errno);
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) fail("cannot create the folder {}: {}", folder.string(), code.message());
  check(std::filesystem::is_directory(folder, code), "cannot create the folder {}: a file of that name is in the way", folder.string());
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = open_or_fail(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY, "open the folder");
  const int result = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  // Some network file systems refuse to sync a directory; the rename is then as durable as they make it.
  if (result != 0 && code != EINVAL && code != ENOTSUP) fail_errno("sync the folder", folder, code);
}

void check_writable(const std::filesystem::path& folder) {
  make_folder(folder);
  const std::filesystem::path probe = folder / (kWritableProbe + std::to_string(::getpid()));
  try {
    File::create(probe).write("x", 1);
  } catch (const Error& error) {
    ::unlink(probe.c_str());
    fail("the folder {} is not writable ({}); choose another one with --job.dump_folder", folder.string(), error.what());
  }
  ::unlink(probe.c_str());
}

std::string read_text(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  check(size <= max_bytes, "{} has {} bytes, expected at most {}", path.string(), size, max_bytes);
  std::string text(size, '\0');
  file.read_at(text.data(), size, 0);
  return text;
}

uint64_t checksum_of(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(std::min<uint64_t>(size, uint64_t{4} << 20));
  for (uint64_t offset = 0; offset < size; offset += buffer.size()) {
    const size_t n = std::min<uint64_t>(buffer.size(), size - offset);
    file.read_at(buffer.data(), n, offset);
    XXH3_64bits_update(state.get(), buffer.data(), n);
  }
  return XXH3_64bits_digest(state.get());
}

uint64_t checksum_of_text(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

uint64_t sampled_checksum_of(const std::filesystem::path& path) {
  constexpr uint64_t kPiece = 4096;
  const File file = File::open_read(path);
  const uint64_t size = file.size(), bytes = std::min(size, kPiece);
  std::string text = std::to_string(size);
  for (const uint64_t offset : {uint64_t{0}, (size - bytes) / 2, size - bytes}) {
    text.resize(text.size() + bytes);
    file.read_at(text.data() + text.size() - bytes, bytes, offset);
  }
  return checksum_of_text(text);
}

}  // namespace halftone
