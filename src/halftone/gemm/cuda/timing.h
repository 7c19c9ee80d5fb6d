#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halftone::gemm {

// Runs the candidates in turns (throttling then slows all alike): `rounds` timed runs each after one untimed run. Returns each candidate's
// median in milliseconds; infinity if it does not run or is not tried. Waits for the stream. Runs shorter than 0.1 ms are timed in batches
// of at most `repeats`, queued behind a spin kernel, so that launch overhead is not measured. Long runs, which would delay training, are
// tried and timed less often (timing_cuda.cpp).
std::vector<float> time_in_turns(size_t count, const std::function<bool(size_t)>& run, int rounds, cudaStream_t stream, int repeats = 10);

// Index of the fastest; a later candidate must be 1% faster than an earlier one, so that noise changes little.
size_t fastest(const std::vector<float>& ms);

bool is_capturing(cudaStream_t stream);

// Single-thread kernel that spins for `microseconds`.
void spin(int microseconds, cudaStream_t stream);

// Scratch memory of one measurement; null if the allocation fails.
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
