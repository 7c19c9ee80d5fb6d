#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"

// Internal: inner loops of the CPU quantisers, one table per instruction set. They require whole vectors only where stated;
// quantize/int8.cpp and fp8_rowwise.cpp handle threads, tails and scales.
namespace halftone::quantize {

struct Kernels {
  // Rows [0, rows) of x[rows, cols]: row_amax[r] = max |bits| of the row (fp32 bits), col_amax[c] = max(col_amax[c], ...).
  // Either may be null.
  void (*amax)(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax);
  // n codes of one row; random: n draws of 16 bits, or null for round to nearest.
  void (*int8_row)(const void* x, DType type, int64_t n, float inv, const uint16_t* random, int8_t* out);
  // Column codes of `quads` * 4 rows x `panels` * 16 columns into consecutive groups of panels `stride` bytes apart. random is laid out
  // like x, row stride random_ld. Two panels at a time read full cache lines of a bf16 matrix.
  void (*int8_quads)(const void* x, DType type, int64_t ld, int64_t quads, int64_t panels, const float* inv, const uint16_t* random,
                     int64_t random_ld, void* out, int64_t stride);
  // n e4m3 codes and their values of one row; inv: one factor per element when inv_step is 1, one for all when 0.
  void (*e4m3_row)(const void* x, DType type, int64_t n, const float* inv, int64_t inv_step, uint8_t* codes, bf16* values);
  // Values of `pairs` * 2 rows x `panels` * 16 columns into consecutive groups of bf16 panels.
  void (*e4m3_pairs)(const void* x, DType type, int64_t ld, int64_t pairs, int64_t panels, const float* inv, void* out, int64_t stride);
  // The 16-bit draws of groups [g, g + groups): out[8 * groups].
  void (*random16)(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, int64_t groups, uint16_t* out);
};

// Row tails, one element at a time. Compiled for the baseline and kept out of line: the linker could keep an inline copy from a file of a
// wider instruction set for all callers.
int8_t int8_one(float y, const uint16_t* random);
uint8_t e4m3_one(float y, bf16* value);
void random16_group(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, uint16_t* out);

const Kernels& kernels_v3();
const Kernels& kernels_avx512();

}  // namespace halftone::quantize
