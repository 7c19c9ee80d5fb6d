#include "halftone/ops/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/range.h"

namespace halftone {

// Not LibTorch's pinned memory, which rounds up to a power of two.
at::Tensor host_zeros(int64_t count, at::ScalarType type, c10::Device device, const char* remedy) {
  if (device.is_meta()) {
    const Owner owner(kHostMemory);
    return at::empty({count}, at::TensorOptions().device(device).dtype(type));
  }
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(type);
  const double gib = static_cast<double>(bytes) / (1 << 30);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(data != MAP_FAILED, "{:.2f} GiB of host memory: {}", gib, std::strerror(errno));
  ::madvise(data, bytes, MADV_HUGEPAGE);         // fewer pages to lock
  fill_zero(data, static_cast<int64_t>(bytes));  // in parallel: each thread first-touches the pages that it writes
  const bool gpu = !device.is_cpu();
  if (const char* problem = gpu ? cuda::required_module().lock_memory(data, bytes) : nullptr; problem != nullptr) {
    ::munmap(data, bytes);
    fail("{:.2f} GiB of host memory cannot be page-locked for the GPU: {}; {}", gib, problem, remedy);
  }
  const auto free = [bytes, gpu](void* memory) {
    if (gpu) cuda::module()->unlock_memory(memory);
    ::munmap(memory, bytes);
  };
  return at::from_blob(data, {count}, free, at::TensorOptions().dtype(type));
}

}  // namespace halftone
