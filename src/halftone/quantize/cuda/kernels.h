#pragma once
#include <cuda_runtime_api.h>

#include "halftone/quantize/cuda/tile_args.h"

// The kernels of formats and scale families that have their own, instantiated in the files tile_*.cu and row_*.cu, so that they
// compile side by side.
namespace halftone::device {

// Element formats with an encoder for vectors; integer: int8, int4, ternary by their bounds.
enum class Coder : int { e4m3, e5m2, e2m1, integer };
constexpr Float float_of(Coder c) { return c == Coder::e4m3 ? Float::e4m3 : c == Coder::e5m2 ? Float::e5m2 : Float::e2m1; }

// How y, which is rounded to a code, follows from x: x * factor, x / factor, or x * factor in bf16 where that is exact (bf16
// elements with power-of-two factors).
enum class Step : int { multiply, divide, exact };

// Which copies a kernel writes.
enum class Copies : int { row = 1, transposed = 2, both = 3 };

// What a kernel writes of its copies: one form, which it then need not ask for, or any of them.
enum class Form : int { any, codes, packed, bf16, folded };

// Which single forms have kernels that take whole blocks a thread (blocks_kernel.cuh).
template <class T>
constexpr bool by_blocks(Coder coder, Step step, int block, Form form) {
  if (block != 32 || coder == Coder::integer || step != (sizeof(T) == 2 ? Step::exact : Step::multiply)) return false;
  return coder == Coder::e2m1 ? form == Form::packed || form == Form::folded : sizeof(T) == 2 && form == Form::codes;
}

struct TileGrid {
  unsigned rows, columns;
};
// Whether the current device starts dependent kernels early (dependent.cuh).
bool has_dependent_launches();

// kBlock: elements a scale along the copy's direction, 0: a row, column or the tensor.
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_tiles(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);

// int8 and int4 codes of both copies of bf16 elements with scales of rows and columns and stochastic rounding (int_pair.cu); false, and
// nothing is launched, where that kernel is not for these copies.
bool launch_int_pair(const TileArgs& a, Form form, TileGrid tiles, cudaStream_t stream);
// The same for packed int4 of whole tiles alone (int4_pair.cu).
bool launch_int4_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// The same for e4m3 and e5m2 codes in MX blocks, not in tiles of 32 x 32 (mxfp8_pair.cu).
bool launch_mxfp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// And for e4m3 and e5m2 codes of fp32 elements (mxfp8_pair_f32.cu).
bool launch_mxfp8_pair_f32(const TileArgs& a, Coder coder, TileGrid tiles, cudaStream_t stream);
// And for e4m3 codes of bf16 with fp32 scales of 1x128 or 128x128 (fp8_pair.cu).
bool launch_fp8_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// And for MXFP4 of bf16 folded into e4m3, without scales beside it (mxfp4_pair.cu).
bool launch_mxfp4_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// The same with rotated columns (mxfp4_rotated.cu), or these alone.
bool launch_mxfp4_rotated(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream);
// And packed, with scales, of bf16.
bool launch_mxfp4_rotated_packed(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// Packed MXFP4 of bf16, of the transposed copy alone with rotated columns (mxfp4_columns.cu).
bool launch_mxfp4_columns(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// And for packed MXFP4 of fp32, where the upper half of the largest magnitude says what scale a block has (mxfp4_packed_f32.cu).
bool launch_mxfp4_packed_f32(const TileArgs& a, TileGrid tiles, cudaStream_t stream);
// And for packed MXFP4 of bf16 whose copies draw from the same groups (mxfp4_packed_pair.cu).
bool launch_mxfp4_packed_pair(const TileArgs& a, TileGrid tiles, cudaStream_t stream);

inline constexpr int kRowThreads = 512;
constexpr bool row_fits(int64_t C) { return C <= kRowThreads * 8 * 8; }
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm>
void launch_rows(const RowArgs& a, cudaStream_t stream);

}  // namespace halftone::device
