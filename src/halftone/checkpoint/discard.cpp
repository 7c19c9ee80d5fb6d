#include "halftone/checkpoint/discard.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "halftone/base/log.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDiscarded = ".deleted";

struct Queue {
  std::mutex mutex;  // of what follows
  std::condition_variable empty;
  std::deque<fs::path> folders;
  pid_t owner = 0;  // of the thread: a fork has none
};

// Never destroyed: the thread may outlive main().
Queue& queue() {
  static auto* q = new Queue;
  return *q;
}

void give_way() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
  constexpr int kThisThread = 1, kIdle = 3 << 13;  // of linux/ioprio.h
  ::syscall(SYS_ioprio_set, kThisThread, 0, kIdle);
}

// Until the queue is empty. A folder stays in it while it is deleted.
void work() {
  give_way();
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  while (!q.folders.empty()) {
    const fs::path folder = q.folders.front();
    lock.unlock();
    std::error_code code;
    fs::remove_all(folder, code);
    if (code) log_warning("cannot remove {}: {}", folder.string(), code.message());
    lock.lock();
    q.folders.pop_front();
  }
  q.owner = 0;
  q.empty.notify_all();
}

}  // namespace

bool is_discarded(std::string_view name) { return name.starts_with("step-") && name.find(kDiscarded) != std::string_view::npos; }

bool discard(const fs::path& folder, const fs::path& name) {
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  if (q.owner != ::getpid()) q.folders.clear();
  fs::path doomed = name;
  if (!is_discarded(folder.filename().string())) {
    std::error_code ignored;
    doomed += kDiscarded;
    for (int i = 2; fs::exists(doomed, ignored); ++i) doomed = fmt::format("{}{}-{}", name.string(), kDiscarded, i);
    if (std::rename(folder.c_str(), doomed.c_str()) != 0) {
      log_warning("cannot remove {}: {}", folder.string(), std::strerror(errno));
      return false;
    }
  } else if (std::find(q.folders.begin(), q.folders.end(), folder) != q.folders.end()) {
    return false;
  }
  q.folders.push_back(doomed);
  constexpr size_t kMany = 8;
  if (q.folders.size() == kMany)
    log_warning("{} old checkpoints wait for deletion, which is slower than saving: free some space, or raise checkpoint.interval", kMany);
  if (q.owner == ::getpid()) return true;
  q.owner = ::getpid();
  std::thread(work).detach();
  return true;
}

bool finish_discards(std::chrono::milliseconds limit) {
  Queue& q = queue();
  std::unique_lock lock(q.mutex);
  return q.empty.wait_for(lock, limit, [&] { return q.owner != ::getpid(); });
}

}  // namespace halftone
