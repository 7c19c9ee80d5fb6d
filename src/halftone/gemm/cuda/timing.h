#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halftone::gemm {

// Runs the candidates in turns (a device that throttles slows all of them alike), `rounds` timed runs each after one that is not; median
// milliseconds of each, infinity of those that do not run or are not tried. Waits for the stream. Runs of less than 0.1 ms are timed
// several at once, at most `repeats`, queued behind a kernel that waits, so that the time is the device's and not that of launching. Of
// longer runs, for which a training run would wait, fewer are tried and timed, see timing_cuda.cpp.
std::vector<float> time_in_turns(size_t count, const std::function<bool(size_t)>& run, int rounds, cudaStream_t stream, int repeats = 10);

// Index of the fastest; a later one must be 1% faster than an earlier one, so that noise changes little.
size_t fastest(const std::vector<float>& ms);

bool is_capturing(cudaStream_t stream);

// A kernel of one thread that waits for `microseconds`.
void spin(int microseconds, cudaStream_t stream);

// Memory of one measurement; null where there is none.
class Scratch {
 public:
  Scratch(int64_t bytes, cudaStream_t stream);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return at_; }

 private:
  void* at_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace halftone::gemm
