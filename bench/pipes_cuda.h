#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace halftone {

// Cycles that a scheduler with six warps takes for a product with 1, 2, 3 and 4 logical operations (LOP3), measured.
struct PipeCycles {
  const char* product;
  std::array<double, 4> cycles;
};
// out: 768 words a multiprocessor of device memory; cycles: a 64-bit word of it.
std::vector<PipeCycles> pipe_cycles(int multiprocessors, uint32_t* out, unsigned long long* cycles);

// Cycles that a scheduler with 4 and 6 warps takes for the instructions of an element, evenly mixed, without anything to wait for: what
// a kernel of these instructions cannot go below.
struct MixCycles {
  const char* what;
  double instructions;
  std::array<double, 2> cycles;
};
// out, cycles: as above.
std::vector<MixCycles> mix_cycles(int multiprocessors, uint32_t* out, unsigned long long* cycles);

}  // namespace halftone
