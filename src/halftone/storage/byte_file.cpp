#include "halftone/storage/byte_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/storage/remote_file.h"

namespace halftone {
namespace {

class LocalFile : public ByteFile {
 public:
  LocalFile(const std::string& path, const std::string& shown) : path_(shown), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(fd_ >= 0, "cannot read {}: {}", path, std::strerror(errno));
    struct stat info {};
    const bool known = ::fstat(fd_, &info) == 0;
    size_ = info.st_size;
    if (known && S_ISREG(info.st_mode)) return;
    ::close(fd_);
    fail("cannot read {}: expected a regular file, found {}", path, S_ISDIR(info.st_mode) ? "a folder" : "something else");
  }
  ~LocalFile() override { ::close(fd_); }
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;
  const std::string& path() const override { return path_; }
  int64_t size() const override { return size_; }
  size_t read(int64_t offset, char* out, size_t size) const override {
    check(offset >= 0, "{}: cannot read at offset {}", path_, offset);
    size_t done = 0;
    while (done < size) {
      const ssize_t n = ::pread(fd_, out + done, size - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      check(n >= 0, "cannot read {} at offset {}: {}", path_, offset, std::strerror(errno));
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

 private:
  std::string path_;
  int fd_;
  int64_t size_ = 0;
};

}  // namespace

bool is_remote(const std::string& path) {
  for (const std::string_view scheme : {"s3://", "gs://", "https://", "http://"}) {
    if (path.starts_with(scheme)) return true;
  }
  return false;
}

std::shared_ptr<const ByteFile> open_bytes(const std::string& path) {
  return is_remote(path) ? storage::open_remote(path) : storage::open_local(path, path);
}

std::shared_ptr<const ByteFile> storage::open_local(const std::string& path, const std::string& shown) {
  return std::make_shared<LocalFile>(path, shown);
}

}  // namespace halftone
