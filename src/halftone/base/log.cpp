#include "halftone/base/log.h"

#include <sys/time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

namespace halftone {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("HALFTONE_LOG");
  const std::string_view name = text ? text : "info";
  if (name == "debug") return LogLevel::debug;
  if (name == "warning") return LogLevel::warning;
  return LogLevel::info;
}

std::atomic<LogLevel>& threshold() {
  static std::atomic<LogLevel> level = level_from_environment();
  return level;
}

std::atomic<bool> enabled = true;

}  // namespace

void set_log_level(LogLevel level) { threshold() = level; }
bool set_log_enabled(bool on) { return enabled.exchange(on); }

void log_line(LogLevel level, std::string_view message) {
  if (!enabled || level < threshold()) return;
  static constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  timeval now{};
  gettimeofday(&now, nullptr);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
  const std::string line =
      fmt::format("[halftone] {},{:03} - root - {} - {}\n", stamp, now.tv_usec / 1000, kNames[static_cast<int>(level)], message);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace halftone
