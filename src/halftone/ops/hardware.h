#pragma once
#include <c10/core/Device.h>

#include "halftone/formats/support.h"

namespace halftone {

// The row of formats/support.h that a device belongs to. Error: a GPU below compute capability 8.0.
Hardware hardware_of(c10::Device device);
// Hardware of a kind of device: all devices of a process are of one model.
Hardware process_hardware(c10::DeviceType type);

// The hardware of the first GPU, or of the CPU if there is none; loads only the driver, not the CUDA runtime.
Hardware this_machine();

namespace cuda {
struct Module;
}

// While it lives, the meta device stands for a device of this kind on this thread: decisions follow `hardware`, and kernels go to `module`,
// which notes them (train/dry_run.h). Nests.
class SimulatedDevice {
 public:
  SimulatedDevice(Hardware hardware, const cuda::Module& module);
  ~SimulatedDevice();
  SimulatedDevice(const SimulatedDevice&) = delete;
  SimulatedDevice& operator=(const SimulatedDevice&) = delete;
  static const SimulatedDevice* current();  // null: none
  const Hardware hardware;
  const cuda::Module& module;

 private:
  const SimulatedDevice* outer_;
};

}  // namespace halftone
