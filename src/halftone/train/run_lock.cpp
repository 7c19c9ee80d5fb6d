#include "halftone/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone {
namespace {

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?', host[1] = 0;
  return fmt::format("process {} on {}", ::getpid(), host.data());
}
// Text that the holder wrote; only for a message.
std::string holder(int fd) {
  std::array<char, 300> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view line = std::string_view(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
  std::string name(line.substr(0, line.find('\n')));
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return name.empty() ? "another process" : name;
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder) {
  const std::string path = (folder / ".lock").string();
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  check(fd_ >= 0, "job.dump_folder: cannot write {}: {}; choose a writable folder with free space", path, std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string by = holder(fd_);
    if (error == EWOULDBLOCK) {
      ::close(fd_);
      fail("job.dump_folder: {} is in use: {} trains there; stop that run, or choose another folder", folder.string(), by);
    }
    log_warning("{} cannot be locked ({}): make sure that no other process trains in this folder", path, std::strerror(error));
    return;
  }
  const std::string text = this_process() + "\n";
  // Only another process's message depends on it.
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, text.data(), text.size(), 0) < 0) log_debug("{}: {}", path, std::strerror(errno));
}
RunLock::~RunLock() { ::close(fd_); }

}  // namespace halftone
