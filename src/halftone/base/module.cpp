#include "halftone/base/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <vector>

namespace halftone {
namespace {

namespace fs = std::filesystem;

// Search folders for modules: the folder of this code's library and the folder of the program.
std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  std::error_code problem;
  if (Dl_info info{}; dladdr(reinterpret_cast<const void*>(&open_module), &info) != 0 && info.dli_fname != nullptr) {
    const fs::path self = fs::canonical(info.dli_fname, problem);
    if (!problem) found.push_back(self.parent_path());
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", problem);
  if (!problem) found.push_back(program.parent_path());
  return found;
}

}  // namespace

OpenModule open_module(const std::string& file, const char* hint) {
  for (const fs::path& folder : folders()) {
    const fs::path path = folder / file;
    if (!fs::exists(path)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, ""};
    const char* reason = dlerror();
    return {nullptr, fmt::format("{} could not be loaded ({})", path.string(), reason != nullptr ? reason : "unknown reason")};
  }
  return {nullptr, fmt::format("there is no {} beside the program; {}", file, hint)};
}

}  // namespace halftone
