#pragma once
#include <array>
#include <vector>

#include "halftone/formats/eden.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/scale_choice.h"
#include "halftone/quantize/check_operand.h"
#include "halftone/quantize/operand_stats.h"

// Internal: one tile of quantize_operand on the CPU. operand.cpp handles the passes over the matrix.
namespace halftone::quantize {

// State of a copy, shared by all tiles.
struct CopyState {
  const QuantizeOperand* p = nullptr;
  const QuantizedCopy* copy = nullptr;
  bool transposed = false;
  OperandSpec spec{};
  int64_t R = 0, C = 0;  // output shape
  uint32_t amax = 0;     // tensor amax, if needed
  ScalePair outer{1, 1};
  std::vector<float> inv;  // row granularity: [R], padded to a multiple of kTileElements / 128; tensor: [1]
  bool poisoned = false;   // some entry of inv is NaN
  std::vector<uint8_t> own_codes, own_scales;
  uint8_t* codes = nullptr;        // [R, C]: the caller's, or own_codes if a fold needs them, or null
  uint8_t* scale_bytes = nullptr;  // byte scales: the caller's, or own_scales if a fold needs them, or null
};

// Layout of a group array in a tile: one entry per height x width elements, [.., ld] entries.
struct GroupLayout {
  int64_t height, width, ld;
};

// Tile shape; rows are processed in multiples of step.
struct TileShape {
  int64_t height, width, step;
};

// Rows and columns of a tile that lie inside a copy.
struct Extent {
  int64_t rows, columns;
};

class TileWorker {
 public:
  // 300 KB of buffers: one persistent worker per thread.
  void use(const OperandKernels& k, TileShape shape) { k_ = &k, shape_ = shape, w_ = shape.width; }

  // Processes the tile at (r0, c0) of the given matrix; either copy may be null. shared: the transposed copy has the row copy's codes.
  void run(const CopyState* row, const CopyState* transposed, bool shared, int64_t r0, int64_t c0);
  // amax of a rotated tile.
  uint32_t rotated_amax(const CopyState& state, int64_t r0, int64_t c0);

 private:
  static constexpr int64_t kElements = kTileElements, kGroups = kElements / 16;

  void place(const CopyState& state, int64_t rows, int64_t r0, int64_t c0);
  void load(const QuantizeOperand& p);
  Extent extent(const CopyState& state) const;
  GroupLayout groups_of(const CopyState& state, int64_t block, bool tile) const;
  void encode(const CopyState& state);
  void apply_macro(const CopyState& state);
  GroupLayout group_scales(const CopyState& state);
  void clipped_scales(const CopyState& state, GroupLayout g);
  void affine_scales(const CopyState& state, GroupLayout g);
  void choose_scales(const CopyState& state, GroupLayout g);
  void rotate(const CopyState& state);
  void eden_scales(const CopyState& state, GroupLayout g);
  void correct_scales(const CopyState& state);
  void find_amax(GroupLayout g, int64_t block);
  void poison(const EncodeTile& t) const;
  uint8_t* direct(const CopyState& state) const;
  void write_scales(const CopyState& state) const;
  template <class T>
  void write_groups(const CopyState& state, GroupLayout g, const T* from, T* out) const;
  void write(const CopyState& state);
  void write_run(const CopyState& state, const uint8_t* codes, int64_t n, int64_t r, int64_t c, const float* scale, const float* zero);
  void decode_scales(const CopyState& state);

  const OperandKernels* k_ = nullptr;
  TileShape shape_{64, 128, 32};
  int64_t w_ = 128, r0_ = 0, c0_ = 0, h_ = 0;
  bool clean_ = false;
  const uint8_t* encoded_ = nullptr;  // codes of the tile, [h_, encoded_ld_]: codes_ or the output itself
  int64_t encoded_ld_ = 0;
  GroupLayout groups_{};
  alignas(64) std::array<float, kElements> f_{};
  alignas(64) std::array<uint8_t, kElements> codes_, turned_;
  alignas(64) std::array<uint16_t, draw_elements(128, 128)> draws_{};
  alignas(64) std::array<uint32_t, kGroups> amax_{};
  alignas(64) std::array<float, kGroups> factor_, scale_, zero_;
  alignas(64) std::array<uint8_t, kGroups> bytes_;
  std::array<float, kTileRow / 16> one_ = [] {
    std::array<float, kTileRow / 16> a;
    a.fill(1.0f);
    return a;
  }();
};

// Scale of `amax` bits and encoding factor of an element with fp32 scales, other than int4, uint4 and ternary.
inline ScalePair fp32_scale(const OperandSpec& s, uint32_t amax) {
  return s.element == Element::int8 ? int8_scale(amax, s.scale_floor)
                                    : fp8_scale(float_of(s.element), s.scale == ScaleFormat::fp32_pow2, amax);
}

// Quantises copies with one scale per row, int8 or nearest e4m3, row by row while a row is in cache, and into panels. Returns false if p
// asks for anything else.
bool quantize_rows(const QuantizeOperand& p, const OperandKernels& k);

// Folds rows [begin, end) of a finished copy from its codes and scale bytes; returns the number of elements that lost bits.
unsigned long long fold_rows(const CopyState& state, int64_t begin, int64_t end);

}  // namespace halftone::quantize
