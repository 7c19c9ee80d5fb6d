#pragma once
#include <cuda_runtime_api.h>

#include "halftone/quantize/cuda/tile_args.h"

namespace halftone::device {

// Element formats with a vector encoder; integer: int8, int4, ternary, distinguished by their bounds.
enum class Coder : int { e4m3, e5m2, e2m1, integer };
constexpr Float float_of(Coder c) { return c == Coder::e4m3 ? Float::e4m3 : c == Coder::e5m2 ? Float::e5m2 : Float::e2m1; }

// How y, the value rounded to a code, is computed from x: x * factor, x / factor, or x * factor in bf16 if exact (bf16 elements with
// power-of-two factors).
enum class Step : int { multiply, divide, exact };

// Copies that a kernel writes.
enum class Copies : int { row = 1, transposed = 2, both = 3 };

// Output of a kernel beside scales: one form known at compile time, or any set of forms (tested at run time). Folded values of groups of
// rows have separate kernels: MXFP4 is compute-bound there, and the group lookup costs 1%.
enum class Form : int { any, codes, packed, bf16, folded, folded_groups };

struct TileGrid {
  unsigned rows, columns;
};
// Whether the current device supports programmatic dependent launch (dependent.cuh).
bool has_dependent_launches();

// Elements per scale along the copy's direction: 16 and 32 (block_kernel.cuh); 128, or 0 for row, column and tensor scales
// (tile_kernel.cuh).
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_blocks(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);
template <class T, Coder kCoder, int kBlock, bool kStochastic, Form kForm>
void launch_tiles(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);

// MS-EDEN copies (eden_kernel.cuh).
template <class T, Form kForm>
void launch_eden(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);

// Row-wise codes only, row scales, elements in bf16 or treated as bf16 (row_kernel.cu). Returns false, without a launch, if a row is too
// long.
bool launch_rows(const TileArgs& a, Coder coder, bool stochastic, cudaStream_t stream);

// Writes the per-group data of `groups` groups of rows (CopyArgs::tile_groups): scales, outer scales, fold scales. Runs after the pass that
// collects the maxima; also covers groups without rows in any tile.
cudaError_t launch_group_scales(const TileArgs& a, int groups, cudaStream_t stream);

// Instantiated kernels, split over files that compile in parallel: X(element type, coder, step, block, R, form), R: stochastic rounding.
// Every form except `any` is what GEMMs read, of bf16 tensors and of master weights.
#define HALFTONE_TILES_FP8_NEAREST(X, R)             \
  X(bf16, Coder::e4m3, Step::multiply, 0, R, any)    \
  X(bf16, Coder::e4m3, Step::multiply, 0, R, codes)  \
  X(bf16, Coder::e5m2, Step::multiply, 0, R, any)    \
  X(bf16, Coder::e5m2, Step::multiply, 0, R, codes)  \
  X(float, Coder::e4m3, Step::multiply, 0, R, any)   \
  X(float, Coder::e4m3, Step::multiply, 0, R, codes) \
  X(float, Coder::e5m2, Step::multiply, 0, R, any)
#define HALFTONE_TILES_FP8_BLOCKS(X, R)               \
  X(bf16, Coder::e4m3, Step::multiply, 128, R, any)   \
  X(bf16, Coder::e4m3, Step::multiply, 128, R, codes) \
  X(float, Coder::e4m3, Step::multiply, 128, R, any)  \
  X(float, Coder::e4m3, Step::multiply, 128, R, codes)
#define HALFTONE_TILES_INTEGER(X, R)                   \
  X(bf16, Coder::integer, Step::multiply, 0, R, any)   \
  X(bf16, Coder::integer, Step::multiply, 0, R, codes) \
  X(float, Coder::integer, Step::multiply, 0, R, any)  \
  X(float, Coder::integer, Step::multiply, 0, R, codes)
// MXFP8 rounded to nearest multiplies in fp32; stochastic rounding multiplies bf16 elements exactly.
#define HALFTONE_BLOCKS_MXFP8_NEAREST(X, R)          \
  X(bf16, Coder::e4m3, Step::multiply, 32, R, any)   \
  X(bf16, Coder::e4m3, Step::multiply, 32, R, bf16)  \
  X(bf16, Coder::e4m3, Step::multiply, 32, R, codes) \
  X(bf16, Coder::e5m2, Step::multiply, 32, R, any)   \
  X(bf16, Coder::e5m2, Step::multiply, 32, R, bf16)  \
  X(bf16, Coder::e5m2, Step::multiply, 32, R, codes) \
  X(float, Coder::e4m3, Step::multiply, 32, R, any)  \
  X(float, Coder::e5m2, Step::multiply, 32, R, any)
#define HALFTONE_BLOCKS_MXFP8_STOCHASTIC(X, R)      \
  X(bf16, Coder::e4m3, Step::exact, 32, R, any)     \
  X(bf16, Coder::e4m3, Step::exact, 32, R, bf16)    \
  X(bf16, Coder::e5m2, Step::exact, 32, R, any)     \
  X(bf16, Coder::e5m2, Step::exact, 32, R, bf16)    \
  X(float, Coder::e4m3, Step::multiply, 32, R, any) \
  X(float, Coder::e5m2, Step::multiply, 32, R, any)
#define HALFTONE_BLOCKS_MXFP4(X, R)                       \
  X(bf16, Coder::e2m1, Step::exact, 32, R, any)           \
  X(bf16, Coder::e2m1, Step::exact, 32, R, folded)        \
  X(bf16, Coder::e2m1, Step::exact, 32, R, folded_groups) \
  X(bf16, Coder::e2m1, Step::multiply, 32, R, any)        \
  X(float, Coder::e2m1, Step::multiply, 32, R, any)
// Evaluation chains of torchao (multiply) and ALTO (divide).
#define HALFTONE_BLOCKS_FP4_TORCHAO(X, R)             \
  X(bf16, Coder::e2m1, Step::multiply, 16, R, any)    \
  X(bf16, Coder::e2m1, Step::multiply, 16, R, bf16)   \
  X(bf16, Coder::e2m1, Step::multiply, 16, R, packed) \
  X(float, Coder::e2m1, Step::multiply, 16, R, any)
#define HALFTONE_BLOCKS_FP4_ALTO(X, R)              \
  X(bf16, Coder::e2m1, Step::divide, 16, R, any)    \
  X(bf16, Coder::e2m1, Step::divide, 16, R, bf16)   \
  X(bf16, Coder::e2m1, Step::divide, 16, R, packed) \
  X(float, Coder::e2m1, Step::divide, 16, R, any)

// MXINT8 and NVINT4.
#define HALFTONE_BLOCKS_INTEGER(X, R)                   \
  X(bf16, Coder::integer, Step::multiply, 32, R, any)   \
  X(bf16, Coder::integer, Step::multiply, 32, R, bf16)  \
  X(bf16, Coder::integer, Step::multiply, 32, R, codes) \
  X(float, Coder::integer, Step::multiply, 32, R, any)  \
  X(bf16, Coder::integer, Step::divide, 16, R, any)     \
  X(bf16, Coder::integer, Step::divide, 16, R, bf16)    \
  X(bf16, Coder::integer, Step::divide, 16, R, packed)  \
  X(float, Coder::integer, Step::divide, 16, R, any)

#define HALFTONE_EDEN(X) X(bf16, any) X(bf16, bf16) X(bf16, packed) X(float, any)

#define HALFTONE_INSTANTIATE_TILES(T, C, S, B, R, F) \
  template void launch_tiles<T, C, B, R, Form::F>(const TileArgs&, Copies, TileGrid, cudaStream_t);
#define HALFTONE_INSTANTIATE_BLOCKS(T, C, S, B, R, F) \
  template void launch_blocks<T, C, S, B, R, Form::F>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
