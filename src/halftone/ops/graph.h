#pragma once
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <functional>

namespace halftone {

// GPU work recorded once as a CUDA graph and replayed by one call. Tensors that the work allocates live in the graph's private memory
// pool; those it returns hold the results of the last replay.
class Graph {
 public:
  // Calls `work`, which must not synchronize. Nothing runs before replay(). On an exception the device state is restored and it
  // propagates.
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
