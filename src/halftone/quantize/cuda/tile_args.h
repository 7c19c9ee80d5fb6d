#pragma once
#include "halftone/formats/scale_pair.h"
#include "halftone/quantize/cuda/draws.cuh"
#include "halftone/quantize/cuda/mx_rule.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// One copy as the kernels see it: QuantizedCopy with derived values precomputed, passed by value in the kernel parameters.
struct CopyArgs {
  uint8_t *codes, *packed;
  void *scales, *values;
  float *outer, *fold_scale;
  unsigned long long* lost;
  int R, C, blocks;  // blocks: scales along C
  // Maxima from an earlier pass: of the tensor, as `tensor_parts` words to reduce, and of each of R (int4: elements without the sign bit,
  // then with it). `scale_pair`: precomputed scale and inverse of a tensor. With groups of rows each group has its own `set`, numbered by
  // tile_groups; group_amax: `set_words` words per set, 0: one array for all groups.
  const uint32_t* tensor_amax;
  const uint32_t* group_amax;
  const ScalePair* scale_pair;
  int tensor_parts;
  const int32_t* tile_groups;  // set per tile of kGroupRows rows; null: no groups
  int set_words;
  ValueForm form;
  Element element;
  Fp4Chain chain;
  TwoLevel two_level;
  ScaleChoice choice;
  float range;  // fp4_range
  MxRule mx;
  bool tile, per_tensor, pow2, wide, fixed_clip;  // wide: ue5m3 block scales
  float scale_floor, low, high;                   // integers only
  int hadamard;
  bool eden;
  RotationSigns signs;
  const uint32_t* signs_step;
  PhiloxKey signs_key;
  Draws draws;
  uint32_t draw_constant;  // of the coder (encode.cuh)
};

// With groups of rows: whether scales and fold scales are per group (scales_by_group); then launch_group_scales writes them.
constexpr bool has_group_scales(const CopyArgs& d) { return d.per_tensor || (d.set_words > 0 && d.form != ValueForm::fold_e4m3); }
constexpr bool has_group_folds(const CopyArgs& d) {
  return d.form == ValueForm::fold_e5m2 || (d.set_words > 0 && d.form == ValueForm::fold_e4m3);
}

struct TileArgs {
  const void* x;
  int rows, cols, first_tile, tiles_r;  // row tiles of this launch: first and count
  int64_t ld;
  RowSource from;  // see quantize/operand.h; as_bf16 too
  bool as_bf16;
  bool dependent;  // depends on the preceding kernel, which collects maxima
  bool backwards;  // last tiles first: the earlier pass left them in the L2 cache
  CopyArgs row, transposed;
};
static_assert(sizeof(TileArgs) < 4096);

// A thread block quantises kTile x kTile elements with eight warps of 32 x 64.
inline constexpr int kTile = 128, kTileThreads = 256, kBand = 8;
static_assert(kTile == kGroupRows);  // a tile has rows of one group only

}  // namespace halftone::device
