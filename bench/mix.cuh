#pragma once
#include <cstdint>
#include <utility>

// Instructions of kernels, evenly mixed: what these cannot be faster than, whatever they wait for.
namespace halftone {

// Kinds of instructions, as pipes see them: a wide product; the sum of three words that follows it; anything else of the integer pipe;
// 32-bit multiply-adds and dot products of the multipliers; fp32; pairs of bf16; words of shared memory written and read.
enum Kind { wide, sum, logic, imad, dot, fp32, pairs, store, load, kKinds };
inline constexpr int kElements = 8;  // that the counts of a mix are of

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

// What instructions of a kind work on, each on the next of its registers: kRegisters chains as long as the loop are under way.
template <int kRegisters>
struct State {
  static constexpr int registers = kRegisters;
  uint32_t value[kRegisters], high[kRegisters], low[kRegisters], word[kRegisters], product[kRegisters], pair[kRegisters];
  float real[kRegisters];
};

// x: words that come from elsewhere; shared: an address of 128 * kRegisters bytes.
template <int kKind, int kNumber, int kRegisters>
__device__ __forceinline__ void one(State<kRegisters>& s, uint32_t by, uint32_t key, uint32_t shared, const uint32_t (&x)[4]) {
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
  } else if constexpr (kKind == pairs) {  // halves twice: all by one way
    asm volatile("{.reg .b16 l, h; .reg .b32 p; mov.b32 {l, h}, %0; mov.b32 p, {h, h}; fma.rn.bf16x2 %0, p, %1, %2;}"
                 : "+r"(s.pair[j])
                 : "r"(key), "r"(x[kNumber % 4]));
  } else if constexpr (kKind == store) {
    asm volatile("st.volatile.shared.u32 [%0+%1], %2;" ::"r"(shared), "n"(j * 128), "r"(s.product[j]) : "memory");
  } else if constexpr (kKind == load) {
    uint32_t w;
    asm volatile("ld.volatile.shared.u32 %0, [%1+%2];" : "=r"(w) : "r"(shared), "n"(j * 128) : "memory");
  }
}
template <class M, int kRegisters, size_t... i>
__device__ __forceinline__ void all(State<kRegisters>& s, uint32_t by, uint32_t key, uint32_t shared, const uint32_t (&x)[4],
                                    std::index_sequence<i...>) {
  constexpr auto order = M::order();
  (one<order.kind[i], order.number[i]>(s, by, key, shared, x), ...);
}

}  // namespace halftone
