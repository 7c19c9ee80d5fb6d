#include "halftone/gemm/cuda/timing.h"

#include <algorithm>
#include <limits>

namespace halftone::gemm {

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Milliseconds of one of `repeats` runs; negative where the device reports a failure.
  float time(const std::function<bool()>& run, int repeats) {
    if (repeats > 1) spin(15 * repeats + 20, stream_);
    cudaEventRecord(begin_, stream_);
    for (int i = 0; i < repeats; ++i) run();
    cudaEventRecord(end_, stream_);
    float ms = 0;
    const bool good = cudaEventSynchronize(end_) == cudaSuccess && cudaEventElapsedTime(&ms, begin_, end_) == cudaSuccess;
    return good ? ms / static_cast<float>(repeats) : -1;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::vector<float> time_in_turns(size_t count, const std::function<bool(size_t)>& run, int rounds, cudaStream_t stream, int repeats) {
  constexpr float kShort = 0.1f;  // milliseconds
  Stopwatch watch(stream);
  std::vector<std::vector<float>> times(count);
  std::vector<float> out(count, std::numeric_limits<float>::infinity());
  std::vector<int> runs_of(count);  // 0: does not run
  for (size_t i = 0; i < count; ++i) {
    const float ms = run(i) ? watch.time([&] { return run(i); }, 1) : -1;  // the first run may load the kernel
    runs_of[i] = ms < 0 ? 0 : ms < kShort ? repeats : 1;
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      if (runs_of[i] == 0) continue;
      const float ms = watch.time([&] { return run(i); }, runs_of[i]);
      if (ms >= 0) times[i].push_back(ms);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (times[i].empty()) continue;
    std::sort(times[i].begin(), times[i].end());
    out[i] = times[i][times[i].size() / 2];
  }
  cudaGetLastError();  // of candidates that cannot be launched
  return out;
}

float time_once(const std::function<bool()>& run, cudaStream_t stream) {
  bool runs = true;
  const float ms = Stopwatch(stream).time([&] { return runs = run(); }, 1);
  cudaGetLastError();
  return runs ? ms : -1;
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
