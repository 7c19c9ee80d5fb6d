#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>

namespace halftone::cuda {

// Measured choices of products outlive the process: what the file of the device's model holds is used before anything is measured, and
// what this process measures is added to it (gemm/choice_file.h). A file that cannot be read or written is a line at debug level.
class ProductChoices {
 public:
  // Reads the file; an empty folder: none.
  ProductChoices(c10::Device device, const std::filesystem::path& folder);
  // Of the process, whose devices are alike, in gemm::cache_folder().
  static ProductChoices& of(c10::Device device);
  const std::filesystem::path& file() const { return file_; }  // empty where none can be written
  // After products that may have measured: whether one has. Costs nothing where none has.
  bool keep_new();

 private:
  std::filesystem::path file_;
  std::mutex mutex_;
  std::atomic<int64_t> kept_ = 0;  // choices made here
};

}  // namespace halftone::cuda
