#include "halftone/cli/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace halftone {
namespace {

// All of this runs in a signal handler: no allocation, no stdio, only calls that POSIX allows there.

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Removes and returns the hexadecimal number at the beginning of `text`.
uintptr_t take_hex(std::string_view& text) {
  uintptr_t value = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text[0];
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    } else {
      break;
    }
  }
  return value;
}

// The file of a line of /proc/self/maps, "7f00-7f80 r--s 00000000 08:01 1234   /data/tokens.bin", if that maps the address; else "".
std::string_view file_of(std::string_view line, uintptr_t address) {
  const uintptr_t begin = take_hex(line);
  if (line.empty() || line[0] != '-') return {};
  line.remove_prefix(1);
  const uintptr_t end = take_hex(line);
  const size_t slash = line.find('/');
  return address >= begin && address < end && slash != line.npos ? line.substr(slash) : std::string_view();
}

// Copied into `name`, truncated to its size.
size_t find_file(uintptr_t address, char* name, size_t size) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  static char buffer[16384];
  size_t filled = 0, length = 0;
  for (ssize_t n = 0; length == 0 && (n = ::read(fd, buffer + filled, sizeof(buffer) - filled)) > 0;) {
    filled += static_cast<size_t>(n);
    std::string_view left(buffer, filled);
    for (size_t stop; length == 0 && (stop = left.find('\n')) != left.npos; left.remove_prefix(stop + 1)) {
      length = file_of(left.substr(0, stop), address).copy(name, size);
    }
    if (left.size() == sizeof(buffer)) left.remove_prefix(left.size());  // a longer line: not ours
    std::memmove(buffer, left.data(), left.size());
    filled = left.size();
  }
  ::close(fd);
  return length;
}

void on_bus_error(int, siginfo_t* info, void*) {
  static char name[4096];
  const size_t length = find_file(reinterpret_cast<uintptr_t>(info->si_addr), name, sizeof(name));
  say("halftone: ");
  say(length > 0 ? std::string_view(name, length) : "a file in memory");
  say(": expected as many bytes as when it was opened, found fewer: it was cut, or its disk failed, while it was read; restore it and "
      "start again (a training run goes on from its newest checkpoint)\n");
  ::_exit(2);
}

}  // namespace

void report_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace halftone
