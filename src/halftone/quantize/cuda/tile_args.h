#pragma once
#include "halftone/formats/scale_pair.h"
#include "halftone/quantize/cuda/draws.cuh"
#include "halftone/quantize/cuda/mx_rule.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// One copy as a kernel sees it: QuantizedCopy with everything that follows from it once, by value in the kernel's parameters.
struct CopyArgs {
  uint8_t *codes, *packed;
  void *scales, *values;
  float *outer, *fold_scale;
  unsigned long long* lost;
  int R, C, blocks;  // blocks: of scales along C
  // Largest magnitudes from an earlier pass: of the tensor, as `tensor_parts` words to be reduced, and of each of R (int4: of
  // the elements without a sign, then of those with one). `scale_pair`: where a tensor's scale and inverse lie ready-made.
  // With groups of rows each group has its own `set` of them, numbered by tile_groups; group_amax: of `set_words` words, 0: of all groups.
  const uint32_t* tensor_amax;
  const uint32_t* group_amax;
  const ScalePair* scale_pair;
  int tensor_parts;
  const int32_t* tile_groups;  // of tiles of kGroupRows rows of the matrix; null: no groups
  int set_words;
  ValueForm form;
  Element element;
  Fp4Chain chain;
  TwoLevel two_level;
  MxRule mx;
  bool tile, per_tensor, pow2, wide, fixed_clip;  // wide: ue5m3 block scales
  float scale_floor, low, high;                   // integers
  int hadamard;
  uint32_t signs;
  const uint32_t* signs_step;
  PhiloxKey signs_key;
  Draws draws;
  uint32_t draw_constant;  // of the coder, encode.cuh
};

// With groups of rows: whether scales, and what folded values go with, are of each group (scales_by_group); launch_group_scales writes
// them.
constexpr bool has_group_scales(const CopyArgs& d) { return d.per_tensor || (d.set_words > 0 && d.form != ValueForm::fold_e4m3); }
constexpr bool has_group_folds(const CopyArgs& d) {
  return d.form == ValueForm::fold_e5m2 || (d.set_words > 0 && d.form == ValueForm::fold_e4m3);
}

struct TileArgs {
  const void* x;
  int rows, cols, first_tile, tiles_r;  // tiles of rows that the launch takes, from the first on
  int64_t ld;
  RowSource from;  // quantize/operand.h, as are
  bool as_bf16;
  bool dependent;  // on the kernel before this one, which collects maxima
  bool backwards;  // last tiles first: what an earlier pass read last is still in the L2 cache
  CopyArgs row, transposed;
};
static_assert(sizeof(TileArgs) < 4096);

// A thread block quantises kTile x kTile elements with eight warps of 32 x 64.
inline constexpr int kTile = 128, kTileThreads = 256, kBand = 8;
static_assert(kTile == kGroupRows);  // a tile has rows of one group

}  // namespace halftone::device
