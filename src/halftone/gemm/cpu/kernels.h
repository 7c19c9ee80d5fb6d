#pragma once
#include <cstddef>
#include <cstdint>

#include "halftone/gemm/cpu/gemm.h"

// Internal: the inner loops of gemm::run, one table per instruction set. gemm.cpp handles blocking, threads and edges.
namespace halftone::gemm {

inline constexpr int64_t kBlockRows = 32;  // rows of C per tile call: two AMX tiles, or a few register blocks
inline constexpr int64_t kMaxPanels = 4;   // columns of C per tile call, in panels

// A block of kBlockRows rows of A: group g (4 bytes) of row r is at
//   data + r / 16 * half + r % 16 * row + g * group                      (register kernels)
//   data + r / 16 * half + r % 16 * row + g / 16 * tile + g % 16 * 4     (AMX; row is the tile's stride)
struct AView {
  const std::byte* data;
  int64_t half, row, group, tile;
};

struct EpilogueArgs {
  const void* acc;
  int64_t acc_ld, rows, cols;
  const float *scale_m, *scale_n, *bias;  // at the block's first row or column
  void* c;
  int64_t ldc;
};
// Writes rows [first, last) of a block.
using Epilogue = void (*)(const EpilogueArgs& e, int64_t first, int64_t last);

// acc[rows, panels * 16] (+)= A block . B panels over `groups` groups; int32 for s8, else fp32. Rows are rounded up to a multiple of the
// register block; acc has room for kBlockRows rows.
struct TileArgs {
  AView a;
  const std::byte* b;       // first group of the first panel
  const std::byte* next_b;  // first group of the next call with the same A, or b
  int64_t panel_stride;
  int64_t panels, rows, groups;
  void* acc;
  int64_t acc_ld;  // elements
  bool first;      // overwrite acc instead of adding to it
  // AMX only: a finished block whose epilogue is interleaved with the tile operations, which leave the vector units idle.
  const EpilogueArgs* pending;
  Epilogue finish;
};

// Without a dot-product instruction for a type, chunks of both operands are widened before the GEMM, so that its inner loop converts
// nothing: each 4-byte unit becomes two units, bf16 pairs two fp32 values, four s8 codes two pairs of 16 bits (codes 0 and 2, 1 and 3).
struct Widen {
  void (*row)(const std::byte* src, int64_t units, std::byte* out);     // unit u of src: 2 u, 2 u + 1 of out
  void (*panel)(const std::byte* src, int64_t groups, std::byte* out);  // group g of src: 2 g, 2 g + 1 of out
};

struct Kernels {
  int64_t panels;  // per tile call
  bool amx;        // A blocks in AMX tile layout; enter() configures the tile registers, leave() releases them
  int64_t chunk;   // groups of k per pass, after widening
  void (*s8)(const TileArgs&);
  void (*bf16)(const TileArgs&);
  void (*f32)(const TileArgs&);
  const Widen *widen_s8, *widen_bf16;  // null: the kernel reads the type directly
  Epilogue (*epilogue)(bool integer, DType c_type, bool accumulate);
  // Transposes 16 rows of 64 bytes at `stride` to 16 groups of a panel (16 x 16 units of 4 bytes), and back.
  void (*transpose)(const std::byte* src, int64_t stride, std::byte* out);
  void (*enter)();
  void (*leave)();
};

const Kernels& kernels_v3();
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx512();
const Kernels& kernels_vnni();
const Kernels& kernels_amx();

}  // namespace halftone::gemm
