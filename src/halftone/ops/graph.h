#pragma once
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <functional>

namespace halftone {

// Work that is queued on a GPU, recorded once as a CUDA graph and queued again by one call. Tensors that the work makes lie in memory of
// the graph's own; those that it hands out hold what the last replay wrote.
class Graph {
 public:
  // Calls `work`, which must not wait for the device. Nothing runs before replay(). Passes errors on; the device is as before then.
  Graph(c10::Device device, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay();  // on the current stream

 private:
  void* graph() { return bytes_.data(); }
  alignas(std::max_align_t) std::array<std::byte, 512> bytes_{};  // at::cuda::CUDAGraph, of 104 bytes in LibTorch 2.11
};

}  // namespace halftone
