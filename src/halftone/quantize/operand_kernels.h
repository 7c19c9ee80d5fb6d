#pragma once
#include <cstddef>
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/formats/float_spec.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_spec.h"
#include "halftone/formats/recipe.h"
#include "halftone/formats/scale_pair.h"

// Internal: inner loops of quantize_operand over one tile of the given matrix (operand_tile.cpp) or, with one scale per row, over rows of
// the matrix itself (operand_rows.cpp), one table per instruction set. The callers handle scale rules, layouts and, unless stated, tails.
namespace halftone::quantize {

// A tile is [rows, width], width a power of two and at least 128: 4 x 1024 if groups lie along the matrix rows, so that it is read in long
// runs; 64 x 128 for a transposed copy, whose runs are then full cache lines; 128 x 128 if blocks are 128 high.
inline constexpr int64_t kTileElements = 128 * 128, kTileRow = 1024;  // at most

// How an element is scaled: x * factor; x / factor; clamp(x * factor, -6, 6); (x - zero) * factor.
enum class Scaling { product, quotient, clamped, affine };

// Encodes f[rows, width] into codes[rows, codes_ld]. The caller handles poisoned groups (factor NaN). Element (r, c) uses factor[(r >>
// row_shift) * factor_ld + i] with i = c if by_column, else c >> column_shift.
struct EncodeTile {
  Element element;
  bool stochastic, by_column;
  Scaling scaling;
  const float* f;
  int64_t rows, width;
  const float *factor, *zero;
  int64_t factor_ld;
  int row_shift, column_shift;
  const uint16_t* draws;  // [rows, draws_ld] when stochastic
  int64_t draws_ld;
  uint8_t* codes;
  int64_t codes_ld;
  IntSpec range;  // of integers
};

// Values of a run of n codes (a multiple of 16): value of the code times scale[i >> shift], plus zero[i >> shift] unless null; out is f32,
// or bf16 if `half`.
struct ValueRun {
  Element element;
  bool half;
  const uint8_t* codes;
  int64_t n;
  const float *scale, *zero;
  int shift;
  void* out;
};

// Errors of the blocks of f[rows, width] under both scale candidates (ChoiceErrors), in six and four: one of (1 << row_shift) x (1 <<
// column_shift) elements each, [.., ld]. Errors of poisoned blocks have no meaning.
struct ChoiceTile {
  ScaleChoice choice;
  const float* f;
  int64_t rows, width;
  const float *per_scale, *ratio;
  int64_t ld;
  int row_shift, column_shift;
  int32_t *six, *four;
};

// Calls f(x as a pointer to its element type).
template <class F>
void typed(const void* x, DType type, F&& f) {
  if (type == DType::f32)
    f(static_cast<const float*>(x));
  else
    f(static_cast<const bf16*>(x));
}

// Calls f<kFormat>() for a float element type, else other().
template <class F, class Other>
auto with_format(Element e, F&& f, Other&& other) {
  switch (e) {
    case Element::e4m3:
      return f.template operator()<Float::e4m3>();
    case Element::e5m2:
      return f.template operator()<Float::e5m2>();
    case Element::e3m2:
      return f.template operator()<Float::e3m2>();
    case Element::e2m3:
      return f.template operator()<Float::e2m3>();
    case Element::e2m1:
      return f.template operator()<Float::e2m1>();
    default:
      return other();
  }
}

// Elements that draw16 may write beyond the requested groups.
inline constexpr int64_t kDrawSlack = 128;

struct OperandKernels {
  // Rows [0, rows) of x[rows, cols], any sizes: row_amax[r] = max bits32(|x|) of the row, col_amax[c] = max(col_amax[c], ...) unless null.
  void (*amax)(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* row_amax, uint32_t* col_amax);
  // n codes of one row, int8 or e4m3; of e4m3 also their values. Either output may be null. draws: n 16-bit draws, or null for nearest.
  void (*row)(Element element, const void* x, DType type, int64_t n, float inv, const uint16_t* draws, uint8_t* codes, bf16* values);
  // Codes (int8, groups of 4 rows) or values (e4m3, groups of 2 rows) of `groups` x `columns`, a multiple of 16, into consecutive groups of
  // panels `stride` bytes apart; inv[columns]; draws [rows, draws_ld] or null. Two panels at a time read full cache lines of bf16.
  void (*panels)(Element element, const void* x, DType type, int64_t ld, int64_t groups, int64_t columns, const float* inv,
                 const uint16_t* draws, int64_t draws_ld, std::byte* out, int64_t stride);
  // The 16-bit draws of groups [g, g + groups) of 8: out[8 * groups + kDrawSlack].
  void (*draw16)(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, int64_t groups, uint16_t* out);
  // Loads x[valid_rows, valid_columns] as fp32 into f[rows, width], zero-padded.
  void (*load)(const void* x, DType type, int64_t ld, int64_t valid_rows, int64_t valid_columns, int64_t rows, int64_t width, float* f);
  // Rotates groups of n = 16, 32, 64 or 128 rows in place, or elements of a row if `along`; `half`: rounds the results to bf16.
  void (*rotate)(float* f, int64_t rows, int64_t width, int n, const RotationSigns& signs, bool half, bool along);
  // Maximum of bits32(|f|) over every run of `block` elements: out[n / block], a multiple of 16.
  void (*amax_along)(const float* f, int64_t n, int64_t block, uint32_t* out);
  // Maximum over every block x 1 column segment of f[rows, width]: out[rows / block, width].
  void (*amax_across)(const float* f, int64_t rows, int64_t width, int64_t block, uint32_t* out);
  // f[rows, width] *= factor[(r >> row_shift) * factor_ld + (by_column ? c : c / 128)]
  void (*scale)(float* f, int64_t rows, int64_t width, const float* factor, int64_t factor_ld, int row_shift, bool by_column);
  void (*encode)(const EncodeTile& t);
  // Block scales of NVFP4 and AMDFP4 and their factors (fp4_block_scale, fp4_factor) from n amaxes, n a multiple of 16. most: largest code;
  // times: factor of the scales, 1, or 1.5 (formats/scale_choice.h).
  void (*fp4_scales)(Fp4Chain chain, ScaleFormat format, const uint32_t* amax, int64_t n, ScalePair outer, float most, float times,
                     uint8_t* scales, float* factors);
  void (*choice_errors)(const ChoiceTile& t);
  // Transposes codes[rows, codes_ld] to out[width, ld], rows a multiple of 16.
  void (*transpose)(const uint8_t* codes, int64_t codes_ld, int64_t rows, int64_t width, uint8_t* out, int64_t ld);
  void (*values)(const ValueRun& run);
  // Packs n 4-bit codes (a multiple of 32) into n / 2 bytes.
  void (*pack4)(const uint8_t* codes, int64_t n, uint8_t* out);
};

const OperandKernels& operand_kernels_v3();
const OperandKernels& operand_kernels_avx512();

}  // namespace halftone::quantize
