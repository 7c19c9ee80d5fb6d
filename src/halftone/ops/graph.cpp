#include "halftone/ops/graph.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include "halftone/ops/torch_cuda.h"

namespace halftone {
namespace {

// at::cuda::CUDAGraph (ATen/cuda/CUDAGraph.h), whose header needs CUDA's.
using Pool = std::pair<unsigned long long, unsigned long long>;
constexpr const char* kConstructor = "_ZN2at4cuda9CUDAGraphC1Eb";
constexpr const char* kDestructor = "_ZN2at4cuda9CUDAGraphD1Ev";
constexpr const char* kBegin = "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode";
constexpr const char* kEnd = "_ZN2at4cuda9CUDAGraph11capture_endEv";
constexpr const char* kReplay = "_ZN2at4cuda9CUDAGraph6replayEv";
constexpr int kRelaxed = 2;  // cudaStreamCaptureModeRelaxed: the allocator may allocate

}  // namespace

Graph::Graph(c10::Device device, const std::function<void()>& work) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
  at::getDeviceAllocator(device.type())->emptyCache();                   // frees cached blocks: the graph gets a pool of its own
  const c10::StreamGuard stream(guard.getStreamFromGlobalPool(device));  // the default stream cannot be captured
  of_torch_cuda<void(void*, bool)>(kConstructor)(graph(), false);
  try {
    of_torch_cuda<void(void*, Pool, int)>(kBegin)(graph(), {0, 0}, kRelaxed);
    std::exception_ptr problem;
    try {
      work();
    } catch (...) {
      problem = std::current_exception();
    }
    try {
      of_torch_cuda<void(void*)>(kEnd)(graph());
    } catch (...) {
      if (!problem) throw;  // otherwise the capture failed because the work did
    }
    if (problem) std::rethrow_exception(problem);
  } catch (...) {
    of_torch_cuda<void(void*)>(kDestructor)(graph());
    throw;
  }
}

Graph::~Graph() { of_torch_cuda<void(void*)>(kDestructor)(graph()); }

void Graph::replay() { of_torch_cuda<void(void*)>(kReplay)(graph()); }

}  // namespace halftone
