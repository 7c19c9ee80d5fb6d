#pragma once
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

namespace halftone {

// Ends the program with one line, `what` and the reason, where a call has failed.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fmt::print(stderr, "{}: {}\n", what, cudaGetErrorString(status));
  std::exit(2);
}

}  // namespace halftone
