#include <cstdint>
#include <iterator>

#include "mix.cuh"
#include "pipes_cuda.h"

namespace halftone {
namespace {

constexpr int kMostWarps = 6, kRegisters = 8;  // warps of a scheduler, with registers for all

template <class M>
__global__ void __launch_bounds__(kMostWarps * 128)
    mix_kernel(int rounds, uint32_t by, uint32_t key, uint32_t* out, unsigned long long* cycles) {
  __shared__ uint32_t memory[kRegisters * 32];
  State<kRegisters> s;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t j = 0; j < kRegisters; ++j) {
    s.value[j] = thread * (j + 3), s.high[j] = thread + j, s.low[j] = thread ^ j, s.word[j] = thread, s.product[j] = thread * 7 + j;
    s.pair[j] = thread + 9 + j, s.real[j] = static_cast<float>(thread + j);
    memory[threadIdx.x % 32 + j * 32] = j;
  }
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + (threadIdx.x & 31) * 4;
  __syncthreads();
  const auto start = static_cast<unsigned long long>(clock64());
  const uint32_t x[4] = {by, by + 1, by + 2, by + 3};
  for (int i = 0; i < rounds; ++i) all<M>(s, by, key, shared, x, std::make_index_sequence<M::total>());
  __syncthreads();
  atomicMax(cycles, static_cast<unsigned long long>(clock64()) - start);
  uint32_t left = 0;
  for (int j = 0; j < kRegisters; ++j) {
    left ^= s.value[j] ^ s.high[j] ^ s.low[j] ^ s.word[j] ^ s.product[j] ^ s.pair[j] ^ __float_as_uint(s.real[j]);
  }
  out[thread] = left;
}

template <class M>
MixCycles cycles_of(const char* what, int multiprocessors, uint32_t* out, unsigned long long* cycles) {
  MixCycles row{what, static_cast<double>(M::total) / kElements, {}};
  constexpr int kRounds = 300, kWarps[] = {4, kMostWarps};
  for (size_t i = 0; i < std::size(kWarps); ++i) {
    unsigned long long most = 0;
    for (int turn = 0; turn < 2; ++turn) {  // the first one warms up
      cudaMemset(cycles, 0, sizeof(most));
      mix_kernel<M><<<multiprocessors, 128 * kWarps[i]>>>(kRounds, 0xD2511F53u, 0x9E3779B9u, out, cycles);
      cudaMemcpy(&most, cycles, sizeof(most), cudaMemcpyDeviceToHost);
    }
    row.cycles[i] = static_cast<double>(most) / (double{kRounds} * kElements * kWarps[i]);
  }
  return row;
}

}  // namespace

std::vector<MixCycles> mix_cycles(int multiprocessors, uint32_t* out, unsigned long long* cycles) {
  const auto of = [&]<int... kCounts>(const char* what, std::integer_sequence<int, kCounts...>) {
    return cycles_of<Mix<kCounts...>>(what, multiprocessors, out, cycles);
  };
  // Of eight elements, in the order of Kind. As compiled (cuobjdump, the usual path of a piece; without what runs in the uniform datapath),
  // and what docs/quantize_cuda.md counts as what no kernel can do without.
  return {of("packed SR both, as compiled", std::integer_sequence<int, 36, 36, 54, 23, 0, 16, 12, 7, 5>()),
          of("packed SR both, the least", std::integer_sequence<int, 35, 35, 47, 18, 0, 16, 12, 2, 2>()),
          of("packed H32 SR both, as compiled", std::integer_sequence<int, 36, 36, 58, 25, 16, 64, 16, 5, 14>()),
          of("packed H32 SR both, the least", std::integer_sequence<int, 35, 35, 43, 30, 16, 64, 8, 2, 4>()),
          of("folded H32 SR both, as compiled", std::integer_sequence<int, 37, 37, 57, 21, 16, 64, 16, 6, 15>())};
}

}  // namespace halftone
