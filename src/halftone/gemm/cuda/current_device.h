#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <mutex>

namespace halftone::gemm {

// Properties of the current device, queried once.
struct Device {
  int id = 0, sm_count = 0;
  bool sm90 = false;  // sm_90a's wgmma and TMA
};
inline const char* current_device(Device& out) {
  struct Known {
    std::once_flag asked;
    Device device;
  };
  static std::array<Known, 64> all{};
  int id = 0;
  if (cudaGetDevice(&id) != cudaSuccess || id >= 64) return "product: no current CUDA device";
  Known& known = all[static_cast<size_t>(id)];
  std::call_once(known.asked, [&] {
    int major = 0, minor = 0, count = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, id);
    known.device = {id, count, major == 9 && minor == 0};
  });
  out = known.device;
  return nullptr;
}

}  // namespace halftone::gemm
