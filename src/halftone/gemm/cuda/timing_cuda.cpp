#include "halftone/gemm/cuda/timing.h"

#include <algorithm>
#include <limits>

namespace halftone::gemm {

namespace {

constexpr float kShort = 0.1f;     // milliseconds
constexpr float kTogether = 0.3f;  // milliseconds of short runs timed in one batch
// Long runs:
constexpr size_t kMostLong = 8;  // try at most this many candidates,
constexpr size_t kFewest = 4;    // only this many once they have taken kMilliseconds,
constexpr float kMilliseconds = 60;
constexpr size_t kTimesLong = 3;  // and time each this often.
constexpr float kBehind = 1.1f;   // a candidate slower than the fastest by this factor is dropped

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

  // Milliseconds per run over `repeats` runs; negative if the device reports a failure.
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
  struct Candidate {
    int runs = 0;  // per batch; 0: it does not run, or is dropped
    std::vector<float> times;
    float median() const {
      if (times.empty()) return std::numeric_limits<float>::infinity();
      std::vector<float> sorted = times;
      std::sort(sorted.begin(), sorted.end());
      return sorted[(sorted.size() - 1) / 2];
    }
  };
  Stopwatch watch(stream);
  std::vector<Candidate> all(count);
  size_t long_ones = 0;
  float spent = 0;
  for (size_t i = 0; i < count; ++i) {
    if (long_ones >= kMostLong || (i >= kFewest && spent > kMilliseconds)) break;
    const float ms = run(i) ? watch.time([&] { return run(i); }, 1) : -1;  // the first run may load the kernel
    if (ms < 0) continue;
    spent += 2 * ms;
    all[i].runs = ms < kShort ? std::clamp(static_cast<int>(kTogether / std::max(ms, 1e-3f)), 2, repeats) : 1;
    if (ms >= kShort) all[i].times.push_back(ms), ++long_ones;
  }
  for (int round = 0; round < rounds; ++round) {
    float best = std::numeric_limits<float>::infinity();
    for (const Candidate& c : all) best = std::min(best, c.median());
    for (size_t i = 0; i < count; ++i) {
      Candidate& c = all[i];
      const bool out = !c.times.empty() && c.median() >= kBehind * best;
      if (c.runs == 0 || out || (c.runs == 1 && c.times.size() >= kTimesLong)) continue;
      const float ms = watch.time([&] { return run(i); }, c.runs);
      if (ms >= 0) c.times.push_back(ms);
    }
  }
  cudaGetLastError();  // clears errors of candidates that cannot be launched
  std::vector<float> out;
  for (const Candidate& c : all) out.push_back(c.median());
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
