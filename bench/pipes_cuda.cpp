// What products cost a scheduler of a multiprocessor beside logical operations, which decides how long kernels with stochastic rounding
// take (a Philox4x32-10 group is twenty wide products):
//   bench_pipes_cuda
#include "pipes_cuda.h"

#include <fmt/format.h>

#include "check_cuda.h"

using halftone::check_cuda;

int main() {
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "bench_pipes_cuda needs a CUDA device");
  void *out = nullptr, *cycles = nullptr;
  check_cuda(cudaMalloc(&out, size_t{768} * 4 * static_cast<size_t>(device.multiProcessorCount)), "memory");
  check_cuda(cudaMalloc(&cycles, sizeof(uint64_t)), "memory");
  fmt::print("{}: cycles of a scheduler for one product and n LOP3\n{:<46}{:>7}{:>7}{:>7}{:>7}\n", device.name, "product", 1, 2, 3, 4);
  for (const auto& row :
       halftone::pipe_cycles(device.multiProcessorCount, static_cast<uint32_t*>(out), static_cast<unsigned long long*>(cycles))) {
    fmt::print("{:<46}", row.product);
    for (const double c : row.cycles) fmt::print("{:>7.2f}", c);
    fmt::print("\n");
  }
  fmt::print("\ncycles of a scheduler with n warps for the instructions of an element, evenly mixed\n{:<39}{:>7}{:>7}{:>7}\n",
             "MXFP4 of bf16", "instr.", 4, 6);
  for (const auto& row :
       halftone::mix_cycles(device.multiProcessorCount, static_cast<uint32_t*>(out), static_cast<unsigned long long*>(cycles))) {
    fmt::print("{:<39}{:>7.1f}", row.what, row.instructions);
    for (const double c : row.cycles) fmt::print("{:>7.2f}", c);
    fmt::print("\n");
  }
  check_cuda(cudaDeviceSynchronize(), "kernels");
}
