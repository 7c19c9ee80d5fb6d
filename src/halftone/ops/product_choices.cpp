#include "halftone/ops/product_choices.h"

#include <cstdlib>
#include <vector>

#include "halftone/base/log.h"
#include "halftone/gemm/choice_file.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/device.h"

namespace halftone::cuda {

ProductChoices::ProductChoices(c10::Device device, const std::filesystem::path& folder) {
  const Module& m = required_module();
  file_ = gemm::choice_file(folder, device_info(device).name, std::to_string(m.library_version()), HALFTONE_VERSION);
  if (file_.empty()) {
    log_debug("GEMM timings are not cached: none of HALFTONE_CACHE, XDG_CACHE_HOME and HOME is set");
    return;
  }
  const gemm::LoadedChoices loaded = gemm::load_choices(file_);
  if (!loaded.problem.empty()) log_debug("{} {}: GEMMs are timed again", file_.string(), loaded.problem);
  m.recall_choices(loaded.choices.data(), static_cast<int64_t>(loaded.choices.size()));
  log_debug("{} GEMM choices from {}", loaded.choices.size(), file_.string());
}

ProductChoices& ProductChoices::of(c10::Device device) {
  static ProductChoices it(device, gemm::cache_folder([](const char* name) -> const char* { return std::getenv(name); }));
  return it;
}

bool ProductChoices::keep_new() {
  const Module& m = required_module();
  if (m.made_choices(nullptr, 0) == kept_) return false;
  const std::lock_guard lock(mutex_);
  const int64_t made = m.made_choices(nullptr, 0);
  if (made == kept_.exchange(made)) return false;  // another thread was faster
  if (file_.empty()) return true;
  std::vector<gemm::ProductChoice> all(static_cast<size_t>(made));  // another process may have replaced the earlier ones
  m.made_choices(all.data(), made);
  const std::string problem = gemm::add_choices(file_, all);
  if (!problem.empty()) {
    log_debug("GEMM timings are not cached: {}", problem);
    file_.clear();
  }
  return true;
}

}  // namespace halftone::cuda
