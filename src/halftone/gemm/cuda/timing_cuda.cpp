#include "halftone/gemm/cuda/timing.h"

#include <algorithm>
#include <limits>

namespace halftone::gemm {

std::vector<float> time_in_turns(size_t count, const std::function<bool(size_t)>& run, int rounds, cudaStream_t stream) {
  std::vector<std::vector<float>> times(count);
  std::vector<float> out(count, std::numeric_limits<float>::infinity());
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<bool> runs(count);
  for (size_t i = 0; i < count; ++i) runs[i] = run(i);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      if (!runs[i]) continue;
      cudaEventRecord(begin, stream);
      run(i);
      cudaEventRecord(end, stream);
      cudaEventSynchronize(end);
      float ms = 0;
      if (cudaEventElapsedTime(&ms, begin, end) == cudaSuccess) times[i].push_back(ms);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (times[i].empty()) continue;
    std::sort(times[i].begin(), times[i].end());
    out[i] = times[i][times[i].size() / 2];
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGetLastError();  // of candidates that cannot be launched
  return out;
}

size_t fastest(const std::vector<float>& ms) {
  size_t best = 0;
  for (size_t i = 1; i < ms.size(); ++i) {
    if (ms[i] < 0.99f * ms[best]) best = i;
  }
  return best;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

Scratch::Scratch(int64_t bytes, cudaStream_t stream) : stream_(stream) {
  if (cudaMallocAsync(&at_, static_cast<size_t>(bytes), stream) != cudaSuccess) {
    cudaGetLastError();
    at_ = nullptr;
    return;
  }
  cudaMemsetAsync(at_, 0, static_cast<size_t>(bytes), stream);
}
Scratch::~Scratch() {
  if (at_) cudaFreeAsync(at_, stream_);
}

}  // namespace halftone::gemm
