#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/formats/recipe.h"
#include "halftone/formats/scale_pair.h"

// Internal: leaf loops of quantize_operand over one tile of the given matrix, one table per instruction set.
// operand_tile.cpp owns scale rules, layouts and tails; here everything has whole vectors.
namespace halftone::quantize {

inline constexpr int64_t kTileWidth = 128, kTileHeight = 128;  // of the buffers; a tile has 64 rows where no block needs 128

// How an element meets its group's numbers: x * factor; x / factor; clamp(x * factor, -6, 6); (x - zero) * factor.
enum class Meet { product, quotient, clamped, affine };

// Encodes f[rows, kTileWidth] into codes[rows, codes_ld]. Poisoned groups, whose factor is NaN, are the caller's. Element (r, c) uses
// factor[(r >> row_shift) * factor_ld + i] with i = c where by_column, else c >> column_shift.
struct EncodeTile {
  Element element;
  bool stochastic, by_column;
  Meet meet;
  const float* f;
  int64_t rows;
  const float *factor, *zero;
  int64_t factor_ld;
  int row_shift, column_shift;
  const uint16_t* draws;  // [rows, kTileWidth] when stochastic
  uint8_t* codes;
  int64_t codes_ld;
};

// Values of a run of n codes (a multiple of 16): value of the code times scale[i >> shift], plus zero[i >> shift] where not
// null; out is f32, or bf16 with `half`.
struct ValueRun {
  Element element;
  bool half;
  const uint8_t* codes;
  int64_t n;
  const float *scale, *zero;
  int shift;
  void* out;
};

struct OperandKernels {
  // x[valid_rows, valid_columns] as fp32 into f[rows, kTileWidth], zeros around it.
  void (*load)(const void* x, DType type, int64_t ld, int64_t valid_rows, int64_t valid_columns, int64_t rows, float* f);
  // Rotates groups of n = 16 or 32 rows in place; `half`: results rounded to bf16.
  void (*rotate)(float* f, int64_t rows, int n, uint32_t signs, bool half);
  // Largest bits32(|f|) of every 1 x block piece of f[rows, kTileWidth], rows a multiple of 16: out[rows, kTileWidth / block].
  void (*amax_along)(const float* f, int64_t rows, int64_t block, uint32_t* out);
  // Of every block x 1 piece: out[rows / block, kTileWidth].
  void (*amax_across)(const float* f, int64_t rows, int64_t block, uint32_t* out);
  // f[rows, kTileWidth] *= factor[(r >> row_shift) * factor_ld + (by_column ? c : 0)]
  void (*scale)(float* f, int64_t rows, const float* factor, int64_t factor_ld, int row_shift, bool by_column);
  void (*encode)(const EncodeTile& t);
  // Block scales of NVFP4 and AMDFP4 and their factors (fp4_block_scale, fp4_factor) from n amaxes, n a multiple of 16.
  void (*fp4_scales)(Fp4Chain chain, ScaleFormat format, const uint32_t* amax, int64_t n, ScalePair outer, uint8_t* scales, float* factors);
  // codes[rows, codes_ld] to out[kTileWidth, ld], rows a multiple of 16.
  void (*transpose)(const uint8_t* codes, int64_t codes_ld, int64_t rows, uint8_t* out, int64_t ld);
  void (*values)(const ValueRun& run);
  // n 4-bit codes (a multiple of 32) to n / 2 bytes.
  void (*pack4)(const uint8_t* codes, int64_t n, uint8_t* out);
};

const OperandKernels& operand_kernels_v3();
const OperandKernels& operand_kernels_avx512();

}  // namespace halftone::quantize
