// Environment variables of libgomp, malloc and CUDA. The first two read them when they are loaded, before main: the program starts itself
// again with them, once, after the loader has mapped it and before any library is initialized (about 30 ms).
#include <alloca.h>
#include <limits.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace {

struct Setting {
  const char* text;
  const char* instead;  // another variable of the user that rules this one out
};
constexpr Setting kSettings[] = {
    // A waiting thread spins for about 30 us, then sleeps. By default it spins for 3 ms; next to another busy program that takes the core
    // from the thread it waits for, and throughput falls twentyfold.
    {"GOMP_SPINCOUNT=3000", "OMP_WAIT_POLICY="},
    // Huge pages for large blocks (madvise): 14% more tokens/s with AMX, 4% with AVX2, if the kernel does not use them by default.
    {"GLIBC_TUNABLES=glibc.malloc.hugetlb=1", nullptr},
    // One GPU queue for each stream. By default streams share eight queues: a message that waits for a peer can block one that the peer
    // waits for, and looped schedules hang (tests/parallel/schedule_test.cpp).
    {"CUDA_DEVICE_MAX_CONNECTIONS=32", nullptr},
};
constexpr int kCount = sizeof kSettings / sizeof kSettings[0];

// Runs before the sanitizers have set up their memory.
#define HALFTONE_EARLY [[gnu::no_sanitize("address", "undefined")]]

HALFTONE_EARLY bool has(char** environment, const char* name_and_sign) {
  const size_t n = static_cast<size_t>(std::strchr(name_and_sign, '=') - name_and_sign) + 1;
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, name_and_sign, n) == 0) return true;
  }
  return false;
}

// Other commands would pay for the restart and gain nothing.
HALFTONE_EARLY bool computes(const char* command) {
  for (const char* one : {"train", "generate", "bench"}) {
    if (std::strcmp(command, one) == 0) return true;
  }
  return false;
}

HALFTONE_EARLY void start_again(int count, char** arguments, char** environment) {
  if (count < 2 || !computes(arguments[1])) return;
  int n = 0, added = 0;
  while (environment[n] != nullptr) ++n;
  const char** extended = static_cast<const char**>(alloca(static_cast<size_t>(n + kCount + 1) * sizeof(char*)));
  for (int i = 0; i < n; ++i) extended[i] = environment[i];
  for (const Setting& s : kSettings) {
    if (!has(environment, s.text) && (s.instead == nullptr || !has(environment, s.instead))) extended[n + added++] = s.text;
  }
  if (added == 0) return;
  extended[n + added] = nullptr;
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return;  // run without them
  program[length] = '\0';
  execve(program, arguments, const_cast<char**>(extended));
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = start_again;

}  // namespace
