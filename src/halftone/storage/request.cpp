#include "halftone/storage/request.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone {
namespace storage {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kQuiet{3};       // a shorter wait is not worth a line
constexpr Seconds kLineEvery{60};  // while a wait lasts; from here on a slow answer that does not fail is worth one, too
constexpr Seconds kWait{2};        // from here on peers must know

// Requests under way, with those that are being retried, and the thread that reports long ones.
class Requests {
 public:
  struct Request {
    std::string address, last = "the server is slow";
    Clock::time_point start = Clock::now();
    bool failed = false;
    Clock::time_point worth_a_line() const { return start + std::chrono::duration_cast<Clock::duration>(failed ? kQuiet : kLineEvery); }
  };
  using Entry = std::list<Request>::iterator;

  Entry begin(const std::string& address) {
    const std::lock_guard lock(mutex_);
    if (!reporter_.joinable()) ending_ = false, reporter_ = std::thread([this] { report(); });
    return requests_.insert(requests_.end(), {address});
  }
  void failed(Entry entry, const std::string& why) {
    const std::lock_guard lock(mutex_);
    entry->last = why, entry->failed = true;
  }
  void end(Entry entry, bool success) {
    const std::lock_guard lock(mutex_);
    const double waited = Seconds(Clock::now() - entry->start).count();
    const std::string address = entry->address;
    requests_.erase(entry);
    if (!told_ || std::any_of(requests_.begin(), requests_.end(), [](const Request& r) { return r.failed; })) return;
    told_ = false;
    if (success) log_info("{}: data is back after {}", address, span(waited));
  }
  bool waiting() {
    const std::lock_guard lock(mutex_);
    return std::any_of(requests_.begin(), requests_.end(), [now = Clock::now()](const Request& r) { return now - r.start > kWait; });
  }
  // True when the pause was cut short by a stop.
  bool pause(double seconds) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, Seconds(seconds), [this] { return stopped.load(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped = true;
    }
    wake_.notify_all();
  }
  void end_reporting() {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      thread.swap(reporter_);
    }
    wake_.notify_all();
    if (thread.joinable()) thread.join();
  }
  std::atomic<bool> stopped = false;

 private:
  void report() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(500), [this] { return ending_; })) {
      const auto now = Clock::now();
      const auto oldest = std::ranges::min_element(requests_, {}, [](const Request& r) { return r.worth_a_line(); });
      if (oldest == requests_.end() || now < oldest->worth_a_line() || (told_ && now - line_at_ < kLineEvery)) continue;
      told_ = true, line_at_ = now;
      const auto others = std::ranges::count_if(requests_, [](const Request& r) { return r.failed; }) - oldest->failed;
      log_warning("{}{}: no answer for {} (last: {}); the run waits", oldest->address,
                  others > 0 ? fmt::format(" and {} more", others) : "", span(Seconds(now - oldest->start).count()), oldest->last);
    }
  }

  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::list<Request> requests_;
  bool told_ = false;  // of the outage that lasts
  Clock::time_point line_at_{};
  bool ending_ = false;
  std::thread reporter_;
};

// Never destroyed: threads of a process that ends by exit() may still use it.
Requests& requests() {
  static auto* const all = new Requests;
  return *all;
}

struct Servers {
  std::mutex mutex;
  StorageOptions options;
  std::map<std::string, std::shared_ptr<Server>> by_scheme;
};
Servers& servers() {
  static auto* const all = new Servers;
  return *all;
}

}  // namespace

std::string span(double seconds) {
  if (seconds < 60) return fmt::format("{:.0f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

bool stopped() { return requests().stopped; }
void check_not_stopped(const std::string& address) { check(!stopped(), "{}: not read, because the run ends", address); }
void stop_requests() { requests().stop(); }
void resume_requests() { requests().stopped = false; }
void end_outage_reporting() { requests().end_reporting(); }

void retried(const std::string& address, const std::function<void()>& attempt) {
  struct Guard {
    Requests::Entry entry;
    bool success = false;
    ~Guard() { requests().end(entry, success); }
  } guard{requests().begin(address)};
  for (double pause = options().first_retry_seconds;; pause = std::min(2 * pause, options().longest_retry_seconds)) {
    check_not_stopped(address);
    try {
      attempt();
      guard.success = true;
      return;
    } catch (const Unavailable& error) {
      log_debug("{}: {}; again in {:.1f} s", address, error.what(), pause);
      requests().failed(guard.entry, error.what());
    }
    requests().pause(pause);
  }
}

const StorageOptions& options() { return servers().options; }

std::shared_ptr<Server> server_of(const std::string& address) {
  const std::string scheme = address.substr(0, address.find("://"));
  Servers& all = servers();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Server>& server = all.by_scheme[scheme == "http" ? "https" : scheme];
  if (!server) server = scheme == "s3" ? make_s3(all.options) : scheme == "gs" ? make_gcs(all.options) : make_http(all.options);
  return server;
}

void set_server(const std::string& scheme, std::shared_ptr<Server> server) {
  const std::lock_guard lock(servers().mutex);
  servers().by_scheme[scheme] = std::move(server);
}

void replace_options(const StorageOptions& options) {
  const std::lock_guard lock(servers().mutex);
  servers().options = options;
  servers().by_scheme.clear();
}

}  // namespace storage

bool waits_for_server() { return storage::requests().waiting(); }

}  // namespace halftone
