#include <cstdint>
#include <iterator>
#include <utility>

#include "pipes_cuda.h"

namespace halftone {
namespace {

// Kinds of instructions, as pipes see them: a wide product; the sum of three words that follows it; anything else of the integer pipe;
// 32-bit multiply-adds and dot products of the multipliers; fp32; pairs of bf16; words of shared memory written and read.
enum Kind { wide, sum, logic, imad, dot, fp32, pairs, store, load, kKinds };
constexpr int kElements = 8, kRegisters = 8, kMostWarps = 6;  // of a scheduler, with registers for all

template <int... kCounts>
struct Mix {
  static constexpr int counts[kKinds] = {kCounts...};
  static constexpr int total = (kCounts + ...);
  // The kinds of all instructions, each as evenly between the others as its number allows, and which of its kind each one is.
  struct Order {
    int kind[total], number[total];
  };
  static constexpr Order order() {
    Order o{};
    int done[kKinds] = {};
    for (int i = 0; i < total; ++i) {
      int most = -1, late = 0;
      for (int kind = 0; kind < kKinds; ++kind) {
        const int lack = counts[kind] * (i + 1) - done[kind] * total;
        if (done[kind] < counts[kind] && (most < 0 || lack > late)) most = kind, late = lack;
      }
      o.kind[i] = most, o.number[i] = done[most]++;
    }
    return o;
  }
};

// What instructions of a kind work on, each on the next of its registers: chains as long as the loop, of which several are under way.
struct State {
  uint32_t value[kRegisters], high[kRegisters], low[kRegisters], word[kRegisters], product[kRegisters], pair[kRegisters];
  float real[kRegisters];
};

template <int kKind, int kNumber>
__device__ __forceinline__ void one(State& s, uint32_t by, uint32_t key, uint32_t shared) {
  constexpr int j = kNumber % kRegisters;
  if constexpr (kKind == wide) {
    uint64_t both;
    asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(both) : "r"(s.value[j]), "r"(by));
    s.high[j] = static_cast<uint32_t>(both >> 32), s.low[j] = static_cast<uint32_t>(both);
  } else if constexpr (kKind == sum) {
    asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(s.value[j]) : "r"(s.high[j]), "r"(s.low[j]), "r"(key));
  } else if constexpr (kKind == logic && kNumber % 5 < 3) {
    asm volatile("prmt.b32 %0, %0, %1, 0x5164;" : "+r"(s.word[j]) : "r"(s.value[j]));
  } else if constexpr (kKind == logic) {
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(s.word[j]) : "r"(s.low[j]), "r"(key));
  } else if constexpr (kKind == imad) {
    asm volatile("mad.lo.u32 %0, %1, %2, %0;" : "+r"(s.product[j]) : "r"(s.word[j]), "r"(by));
  } else if constexpr (kKind == dot) {
    asm volatile("dp2a.lo.u32.s32 %0, %1, %2, %0;" : "+r"(s.word[j]) : "r"(s.value[j]), "r"(key));
  } else if constexpr (kKind == fp32 && kNumber % 2 == 0) {
    asm volatile("mul.rp.f32 %0, %0, %1;" : "+f"(s.real[j]) : "f"(1.5f));
  } else if constexpr (kKind == fp32) {
    asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(s.real[j]) : "f"(s.real[(j + 4) % kRegisters]));
  } else if constexpr (kKind == pairs) {  // halves twice: all by one way (docs/quantize_cuda.md)
    asm volatile("{.reg .b16 l, h; .reg .b32 p; mov.b32 {l, h}, %0; mov.b32 p, {h, h}; fma.rn.bf16x2 %0, p, %1, %2;}"
                 : "+r"(s.pair[j])
                 : "r"(key), "r"(by));
  } else if constexpr (kKind == store) {
    asm volatile("st.volatile.shared.u32 [%0+%1], %2;" ::"r"(shared), "n"(j * 128), "r"(s.product[j]) : "memory");
  } else if constexpr (kKind == load) {
    uint32_t w;
    asm volatile("ld.volatile.shared.u32 %0, [%1+%2];" : "=r"(w) : "r"(shared), "n"(j * 128) : "memory");
  }
}
template <class M, size_t... i>
__device__ __forceinline__ void all(State& s, uint32_t by, uint32_t key, uint32_t shared, std::index_sequence<i...>) {
  constexpr auto order = M::order();
  (one<order.kind[i], order.number[i]>(s, by, key, shared), ...);
}

template <class M>
__global__ void __launch_bounds__(kMostWarps * 128)
    mix_kernel(int rounds, uint32_t by, uint32_t key, uint32_t* out, unsigned long long* cycles) {
  __shared__ uint32_t memory[kRegisters * 32];
  State s;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t j = 0; j < kRegisters; ++j) {
    s.value[j] = thread * (j + 3), s.high[j] = thread + j, s.low[j] = thread ^ j, s.word[j] = thread, s.product[j] = thread * 7 + j;
    s.pair[j] = thread + 9 + j, s.real[j] = static_cast<float>(thread + j);
    memory[threadIdx.x % 32 + j * 32] = j;
  }
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + (threadIdx.x & 31) * 4;
  __syncthreads();
  const auto start = static_cast<unsigned long long>(clock64());
  for (int i = 0; i < rounds; ++i) all<M>(s, by, key, shared, std::make_index_sequence<M::total>());
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
