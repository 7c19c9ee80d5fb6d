#pragma once
#include <cuda_runtime_api.h>

#include "halftone/quantize/cuda/tile_args.h"

namespace halftone::device {

// Element formats with an encoder for vectors; integer: int8, int4, ternary by their bounds.
enum class Coder : int { e4m3, e5m2, e2m1, integer };
constexpr Float float_of(Coder c) { return c == Coder::e4m3 ? Float::e4m3 : c == Coder::e5m2 ? Float::e5m2 : Float::e2m1; }

// How y, which is rounded to a code, follows from x: x * factor, x / factor, or x * factor in bf16 where that is exact (bf16
// elements with power-of-two factors).
enum class Step : int { multiply, divide, exact };

// Which copies a kernel writes.
enum class Copies : int { row = 1, transposed = 2, both = 3 };

// What a kernel writes of its copies beside scales: one form, which it then need not ask for, or whatever they have. Folded values of
// groups of rows have kernels of their own: where MXFP4 waits for arithmetic, looking up the group costs it 1%.
enum class Form : int { any, codes, packed, bf16, folded, folded_groups };

struct TileGrid {
  unsigned rows, columns;
};
// Whether the current device starts dependent kernels early (dependent.cuh).
bool has_dependent_launches();

// Elements a scale along the copy's direction: 16 and 32 (block_kernel.cuh), 128 and 0 for a row, column or the tensor (tile_kernel.cuh).
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_blocks(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);
template <class T, Coder kCoder, int kBlock, bool kStochastic, Form kForm>
void launch_tiles(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);

// Codes of the row copy alone of elements that are or count as bf16, with scales of rows (row_kernel.cu); false, and nothing is launched,
// where a row is too long.
bool launch_rows(const TileArgs& a, Coder coder, bool stochastic, cudaStream_t stream);

// What each of `groups` groups of rows has for itself (CopyArgs::tile_groups): scales, outer scales, scales of folded values. After the
// pass that leaves its maxima, and whether or not a tile has rows of it.
cudaError_t launch_group_scales(const TileArgs& a, int groups, cudaStream_t stream);

// The kernels that there are, in files that compile side by side: X(element type, coder, step, block, R, form), R: with
// stochastic rounding. Every form but `any` is what products read, of bf16 tensors and of masters.
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
// MXFP8 rounded to nearest multiplies in fp32; stochastically rounded it takes bf16 elements exactly.
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
// The chains of torchao (multiply) and of ALTO (divide).
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

#define HALFTONE_INSTANTIATE_TILES(T, C, S, B, R, F) \
  template void launch_tiles<T, C, B, R, Form::F>(const TileArgs&, Copies, TileGrid, cudaStream_t);
#define HALFTONE_INSTANTIATE_BLOCKS(T, C, S, B, R, F) \
  template void launch_blocks<T, C, S, B, R, Form::F>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
