#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>

namespace halftone::cuda {

// Persists measured GEMM algorithm choices across runs: the file of the device's model is read before anything is measured, and this
// process's measurements are added to it (gemm/choice_file.h). A file that cannot be read or written is logged at debug level.
class ProductChoices {
 public:
  // Reads the file; an empty folder: no file.
  ProductChoices(c10::Device device, const std::filesystem::path& folder);
  // The process-wide instance (all its devices are of one model), in gemm::cache_folder().
  static ProductChoices& of(c10::Device device);
  const std::filesystem::path& file() const { return file_; }  // empty if none can be written
  // Called after GEMMs that may have measured: whether one has. Free if none has.
  bool keep_new();

 private:
  std::filesystem::path file_;
  std::mutex mutex_;
  std::atomic<int64_t> kept_ = 0;  // choices made here
};

}  // namespace halftone::cuda
