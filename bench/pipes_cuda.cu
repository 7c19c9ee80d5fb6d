#include "pipes_cuda.h"

namespace halftone {
namespace {

enum class Product { none, low, high, wide, dot, fp32, fp64, pairs, halves };
constexpr int kChains = 8, kSteps = 4;

struct State {
  uint32_t value[kChains], beside[kChains];
  float real[kChains];
  double exact[kChains];  // 2^52 and more: the word in its lower half
};

// The next word of a chain: what the product leaves, by one logical operation. As instructions that the compiler neither merges nor drops.
template <Product kProduct>
__device__ __forceinline__ void step(State& s, int j, uint32_t by, uint32_t also, double factor, double rest) {
  uint32_t high = also, low = s.value[j];
  if constexpr (kProduct == Product::low) {
    asm volatile("mul.lo.u32 %0, %1, %2;" : "=r"(low) : "r"(s.value[j]), "r"(by));
  } else if constexpr (kProduct == Product::high) {
    asm volatile("mul.hi.u32 %0, %1, %2;" : "=r"(high) : "r"(s.value[j]), "r"(by));
  } else if constexpr (kProduct == Product::wide) {
    uint64_t both;
    asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(both) : "r"(s.value[j]), "r"(by));
    high = static_cast<uint32_t>(both >> 32), low = static_cast<uint32_t>(both);
  } else if constexpr (kProduct == Product::dot) {
    asm volatile("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(low) : "r"(s.value[j]), "r"(by), "r"(also));
  } else if constexpr (kProduct == Product::fp32) {
    asm volatile("mul.rp.f32 %0, %0, %1;" : "+f"(s.real[j]) : "f"(1.5f));
  } else if constexpr (kProduct == Product::pairs) {
    asm volatile("fma.rn.bf16x2 %0, %1, %2, %2;" : "=r"(low) : "r"(s.value[j]), "r"(by));
  } else if constexpr (kProduct == Product::halves) {
    asm volatile("{.reg .b16 l, h; .reg .b32 p; mov.b32 {l, h}, %1; mov.b32 p, {h, h}; fma.rn.bf16x2 %0, p, %2, %2;}"
                 : "=r"(low)
                 : "r"(s.value[j]), "r"(by));
  } else if constexpr (kProduct == Product::fp64) {  // the upper word, exactly: 2^52 + x by / 2^32, rounded down
    const auto word = static_cast<uint32_t>(__double2loint(s.exact[j]));
    asm volatile("mul.lo.u32 %0, %1, %2;" : "=r"(low) : "r"(word), "r"(by));
    asm volatile("fma.rm.f64 %0, %0, %1, %2;" : "+d"(s.exact[j]) : "d"(factor), "d"(rest));
    high = static_cast<uint32_t>(__double2loint(s.exact[j]));
  }
  uint32_t next;
  asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(next) : "r"(high), "r"(low), "r"(also));
  if constexpr (kProduct == Product::fp64) {
    s.exact[j] = __hiloint2double(__double2hiint(s.exact[j]), static_cast<int>(next));
  } else {
    s.value[j] = next;
  }
}

template <Product kProduct, int kLogic>
__global__ void __launch_bounds__(768)
    cycles_kernel(int rounds, uint32_t by, uint32_t also, double factor, double rest, uint32_t* out, unsigned long long* cycles) {
  State s;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kChains; ++j) {
    s.value[j] = thread * (j + 5), s.beside[j] = thread + j, s.real[j] = static_cast<float>(thread + j);
    s.exact[j] = __hiloint2double(0x43300000, static_cast<int>(s.value[j]));
  }
  __syncthreads();
  const auto start = static_cast<unsigned long long>(clock64());
  for (int i = 0; i < rounds; ++i) {
#pragma unroll
    for (int j = 0; j < kSteps * kChains; ++j) {
      step<kProduct>(s, j % kChains, by, also, factor, rest);
#pragma unroll
      for (int k = 1; k < kLogic; ++k)
        asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(s.beside[(j + k) % kChains]) : "r"(by), "r"(also));
    }
  }
  __syncthreads();
  atomicMax(cycles, static_cast<unsigned long long>(clock64()) - start);
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) {
    sum ^= s.value[j] ^ s.beside[j] ^ __float_as_uint(s.real[j]) ^ static_cast<uint32_t>(__double2loint(s.exact[j]));
  }
  out[thread] = sum;
}

template <Product kProduct, int kLogic>
double cycles_of(int multiprocessors, uint32_t* out, unsigned long long* cycles) {
  constexpr uint32_t kBy = 0xD2511F53u;  // Philox's
  constexpr int kRounds = 200, kWarps = 6;
  unsigned long long most = 0;
  for (int turn = 0; turn < 2; ++turn) {  // the first one warms up
    cudaMemset(cycles, 0, sizeof(most));
    cycles_kernel<kProduct, kLogic>
        <<<multiprocessors, 128 * kWarps>>>(kRounds, kBy, kBy, kBy * 0x1p-32, 0x1p52 - kBy * 0x1p20, out, cycles);
    cudaMemcpy(&most, cycles, sizeof(most), cudaMemcpyDeviceToHost);
  }
  return static_cast<double>(most) / (double{kRounds} * kSteps * kChains * kWarps);
}

template <Product kProduct>
PipeCycles row(const char* name, int multiprocessors, uint32_t* out, unsigned long long* cycles) {
  return {name,
          {cycles_of<kProduct, 1>(multiprocessors, out, cycles), cycles_of<kProduct, 2>(multiprocessors, out, cycles),
           cycles_of<kProduct, 3>(multiprocessors, out, cycles), cycles_of<kProduct, 4>(multiprocessors, out, cycles)}};
}

}  // namespace

std::vector<PipeCycles> pipe_cycles(int multiprocessors, uint32_t* out, unsigned long long* cycles) {
  const auto of = [&]<Product kProduct>(const char* name) { return row<kProduct>(name, multiprocessors, out, cycles); };
  return {of.operator()<Product::none>("nothing"),
          of.operator()<Product::low>("lower word (IMAD)"),
          of.operator()<Product::high>("upper word (IMAD.HI)"),
          of.operator()<Product::wide>("both words (IMAD.WIDE)"),
          of.operator()<Product::dot>("dot product of 16-bit halves (IDP)"),
          of.operator()<Product::fp32>("fp32 product (FMUL)"),
          of.operator()<Product::fp64>("fp64 product-sum and lower word (DFMA, IMAD)"),
          of.operator()<Product::pairs>("bf16 pairs, words as they are (HFMA2)"),
          of.operator()<Product::halves>("bf16 pairs, upper halves twice (HFMA2)")};
}

}  // namespace halftone
