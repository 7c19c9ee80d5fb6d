#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace halftone {

enum class LogLevel { debug, info, warning, error };

// Writes `[halftone] 2026-03-01 12:00:00,123 - root - INFO - message` (torchtitan's prefix) to standard output, warnings and errors
// included. HALFTONE_LOG sets the level (debug, info, warning). Thread-safe.
void log_line(LogLevel level, std::string_view message);
void set_log_level(LogLevel level);
// Ranks outside LOG_RANK log nothing. Returns what was set before.
bool set_log_enabled(bool enabled);

template <class... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... a) {
  log_line(LogLevel::debug, fmt::format(f, std::forward<Args>(a)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> f, Args&&... a) {
  log_line(LogLevel::info, fmt::format(f, std::forward<Args>(a)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> f, Args&&... a) {
  log_line(LogLevel::warning, fmt::format(f, std::forward<Args>(a)...));
}

}  // namespace halftone
