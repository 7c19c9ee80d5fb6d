#include "halftone/cli/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// The first sentences of the first line, without the final full stop.
std::string beginning(std::string_view text, int sentences) {
  text = text.substr(0, text.find('\n'));
  size_t end = 0;
  for (int i = 0; i < sentences && end < text.size(); ++i) end = std::min(text.find(". ", end == 0 ? 0 : end + 2), text.size());
  text = text.substr(0, end);
  if (text.ends_with('.')) text.remove_suffix(1);
  return std::string(text);
}

Failure out_of_memory(std::string_view said) {
  return {2, fmt::format(
                 "out of memory: {}; lower training.local_batch_size or training.seq_len, set activation_checkpoint.mode = \"full\", or "
                 "use a smaller model (of a benchmark: smaller sizes)",
                 said)};
}

}  // namespace

Failure failure_of(const std::exception& error) {
  if (dynamic_cast<const NonFiniteError*>(&error) != nullptr) return {3, error.what()};
  if (dynamic_cast<const Error*>(&error) != nullptr) return {2, error.what()};
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return out_of_memory("the system has no memory left for this process");
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    const std::string_view said = torch->what_without_backtrace();
    // "CUDA out of memory. Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.43 GiB is free. ..."
    constexpr std::string_view kCuda = "CUDA out of memory. ", kCpu = "DefaultCPUAllocator: can't allocate memory: ";
    if (said.starts_with(kCuda)) return out_of_memory(beginning(said.substr(kCuda.size()), 2));
    if (const size_t at = said.find(kCpu); at != std::string_view::npos) return out_of_memory(beginning(said.substr(at + kCpu.size()), 1));
    if (dynamic_cast<const c10::OutOfMemoryError*>(torch) != nullptr) return out_of_memory(beginning(said, 2));
    return {1, fmt::format("internal error: {}", said.substr(0, said.find('\n')))};
  }
  return {1, fmt::format("internal error: {}", error.what())};
}

std::string write_problem(std::FILE* out, const char* what) {
  const bool failed_before = std::ferror(out) != 0;
  errno = 0;
  bool failed = std::fflush(out) != 0;
  // stdio keeps no reason of an earlier failure; another newline, after output that is broken anyway, shows whether it still fails.
  if (failed_before && !failed) failed = std::fputc('\n', out) == EOF || std::fflush(out) != 0;
  if (!failed_before && !failed) return "";
  const int code = failed ? errno : 0;
  const char* hint = code == ENOSPC || code == EDQUOT ? "free some space or " : "";
  const char* reason = failed ? std::strerror(code) : "an earlier write failed";
  return fmt::format("{} cannot be written: {}; {}send the output elsewhere", what, reason, hint);
}

}  // namespace halftone
