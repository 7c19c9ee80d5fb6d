#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace halftone::plan {

// The energy counter of a GPU, read through NVML (nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded).
class EnergyCounter {
 public:
  explicit EnergyCounter(c10::Device device);
  ~EnergyCounter();
  EnergyCounter(const EnergyCounter&) = delete;
  EnergyCounter& operator=(const EnergyCounter&) = delete;
  std::optional<double> joules() const;                    // none: cannot be read
  const std::string& missing() const { return missing_; }  // why; "" if it can

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;  // nvmlDevice_t
  std::string missing_;
};

}  // namespace halftone::plan
