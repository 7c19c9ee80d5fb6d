#pragma once
#include "halftone/quantize/cuda/amax8.cuh"
#include "halftone/quantize/cuda/emit.cuh"

namespace halftone::device {

// Where a thread's 8 x 8 elements lie in a copy: vector i is element (R, C) = (r + i, c) to (r + i, c + 7) of it.
struct Place {
  int lane, warp, r, c;
  bool first_tile;  // of the tiles along C: this thread block writes the scales of whole rows
};

// The scale of one e2m1, e4m3 or e5m2 block of 16 or 32 and what its elements and values need.
struct BlockResult {
  uint32_t byte;
  float factor, scale;
};
template <Step kStep, int kBlock>
__device__ __forceinline__ BlockResult block_rule(const CopyArgs& d, uint32_t amax, ScalePair outer) {
  if constexpr (kBlock == 32) {
    const uint32_t byte = mx_byte(d.mx, amax);
    const float inverse = mx_inverse_of(byte);
    return {byte, d.fixed_clip ? 0.75f * inverse : inverse, e8m0_value(byte)};
  }
  constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
  const uint32_t byte = fp4_byte(kChain, d.wide, amax, outer);
  const float value = fp4_scale_value(d.wide, byte);
  return {byte, fp4_element_factor(kChain, value, outer), value};
}

// Scale of a tensor, row or 128-block of fp8 or integers; i: which of R, for int4's two maxima.
template <Coder kCoder>
__device__ __forceinline__ ScalePair group_rule(const CopyArgs& d, uint32_t amax, int i) {
  if constexpr (kCoder == Coder::integer) {
    if (d.element == Element::int4) return int4_scale(amax, i < d.R ? d.group_amax[d.R + i] : 0u, d.scale_floor);
    return int8_scale(amax, d.scale_floor);
  }
  return fp8_scale(float_of(kCoder), d.pow2, amax);
}

// Draws of a thread's elements: along axis 0 a vector is one group, along axis 1 its elements belong to eight.
template <int kAxis>
struct TileDraws {
  uint32_t v[8][4];  // one row of them at a time along axis 0
  uint32_t constant;
  template <Coder kCoder>
  __device__ __forceinline__ uint32_t at(int vector, int i) const {
    constexpr bool number = kCoder == Coder::integer;
    const int group = kAxis == 0 ? vector : i, element = kAxis == 0 ? i : vector;
    const uint32_t word = v[group][element >> 1];
    return (element & 1) == 0 ? place_draw<0>(word, constant, number) : place_draw<1>(word, constant, number);
  }
};

// Reference bytes of the rows of the copy that the lane owns, of all rows of its tiles where scales are tiles, and the scales
// that go with them, written by the thread blocks of the first tile.
template <int kOwn>
__device__ __forceinline__ void fold_references(const CopyArgs& d, const Place& p, int first, uint32_t (&references)[kOwn]) {
  uint32_t whole = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int r = p.r + first + j;
    references[j] = r < d.R ? d.group_amax[r] : 0u;
    whole = max(whole, references[j]);
  }
  if (d.tile) whole = max_over(whole, 1 | 2 | 8 | 16);
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    references[j] = mx_byte(d.mx, d.tile ? whole : references[j]);
    const int r = p.r + first + j;
    if (p.first_tile && r < d.R) {
      d.fold_scale[r] = references[j] == 255 ? quiet_nan() : fold_scale(Float::e4m3, static_cast<int>(references[j]) - 127);
    }
  }
}

// One copy of the thread's elements: scales, codes, stores. kBlock: 16 or 32 (e8m0, e4m3, ue5m3 scales), 128 or 0 (fp32
// scales: of the block from `shared_amax`, or from an earlier pass). x: vectors along C. shared_amax: of the vectors that the
// lane owns, 128-blocks only.
template <Coder kCoder, Step kStep, int kBlock, bool kStochastic, int kAxis, class T>
__device__ __forceinline__ void pass(const CopyArgs& d, const Place& p, const Vec8<T> (&x)[8], const Amax8<T>& amax,
                                     const uint32_t (&shared_amax)[2], uint32_t tensor_amax) {
  constexpr bool kGrouped = kBlock == 16 || kBlock == 32;
  using Blocks = Owned<T, kAxis, kBlock == 16 ? 2 : 4>;
  constexpr int kOwn = kGrouped ? Blocks::kCount : kAxis == 0 ? 1 : 2;
  float factor[kOwn], reciprocal[kOwn];
  uint32_t value[kOwn];
  if constexpr (kGrouped) {
    ScalePair outer{1, 1};
    if constexpr (kBlock == 16) {
      constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
      outer = fp4_outer(kChain, d.wide ? ScaleFormat::ue5m3 : ScaleFormat::e4m3, d.two_level, tensor_amax);
    }
    if (d.outer != nullptr && p.r == 0 && p.c == 0) *d.outer = outer.scale;
    Blocks own(amax, p.lane);
    const int first = Blocks::first(p.lane);
    if (d.tile) {
      constexpr int kLanes = kBlock == 16 ? 1 | 8 : 1 | 2 | 8 | 16;
      const uint32_t whole = max_over(amax_total(amax), kLanes);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) own.amax[j] = whole;
    }
    auto* scales = static_cast<uint8_t*>(d.scales);
    uint32_t reference = 0, references[kOwn] = {};
    if (kCoder == Coder::e2m1 && d.form == ValueForm::fold_e4m3) fold_references<kOwn>(d, p, first, references);
    if (kCoder == Coder::e2m1 && d.form == ValueForm::fold_e5m2) {
      reference = mx_byte(d.mx, tensor_amax);
      if (p.r == 0 && p.c == 0) *d.fold_scale = reference == 255 ? quiet_nan() : fold_scale(Float::e5m2, static_cast<int>(reference) - 127);
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const BlockResult b = block_rule<kStep, kBlock>(d, own.amax[j], outer);
      factor[j] = b.factor;
      const int r = p.r + first + j;
      if (kCoder == Coder::e2m1 && d.form == ValueForm::fold_e4m3) reference = references[j];
      value[j] = d.form == ValueForm::none ? 0u : value_word<kCoder>(d, b.scale, b.byte, reference);
      if constexpr (kStep == Step::divide) reciprocal[j] = divisor(b.factor).reciprocal;
      if (scales == nullptr) continue;
      const int block = p.c / kBlock;
      if (d.tile) {
        if (j == 0 && p.r % kBlock == 0 && p.c % kBlock == 0 && p.r < d.R && p.c < d.C)
          scales[int64_t{p.r / kBlock} * d.blocks + block] = static_cast<uint8_t>(b.byte);
      } else if (r < d.R && block * kBlock < d.C) {
        scales[int64_t{r} * d.blocks + block] = static_cast<uint8_t>(b.byte);
      }
    }
  } else {
    const int first = kAxis == 0 ? p.lane & 7 : (p.lane >> 3) * 2;
    if (d.outer != nullptr && p.r == 0 && p.c == 0) *d.outer = 1;
    auto* scales = static_cast<float*>(d.scales);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = p.r + first + j;
      ScalePair s;
      if constexpr (kBlock == 128) {
        s = group_rule<kCoder>(d, shared_amax[j], r);
        const bool writer = kAxis == 0 ? (p.warp & 1) == 0 : (p.warp >> 1) == 0;
        const int block = p.c / kBlock;
        if (writer && scales != nullptr && r < d.R && block * kBlock < d.C) {
          if (!d.tile) scales[int64_t{r} * d.blocks + block] = s.scale;
          if (d.tile && r % kBlock == 0) scales[int64_t{r / kBlock} * d.blocks + block] = s.scale;
        }
      } else {
        if (d.scale_pair != nullptr) {
          s = *d.scale_pair;
        } else {
          s = group_rule<kCoder>(d, d.per_tensor ? tensor_amax : r < d.R ? d.group_amax[r] : 0u, r);
        }
        const bool writer = kAxis == 0 ? (p.warp & 1) == 0 : (p.warp >> 1) == 0;
        if (p.first_tile && writer && scales != nullptr && r < (d.per_tensor ? 1 : d.R)) scales[r] = s.scale;
      }
      factor[j] = s.inv, value[j] = __float_as_uint(1.0f);
    }
  }

  TileDraws<kAxis> draws;
  draws.constant = in_register(draw_constant<kCoder>());
  if constexpr (kStochastic && kAxis == 1) {
    const int64_t group = d.draws.first + int64_t{p.c} * d.draws.row + p.r / 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) draw8(d.draws, group + i * d.draws.row, draws.v[i]);
  }
  const int valid = p.c < d.C ? min(max(d.R - p.r, 0), 8) : 0;
  Outputs out(d, int64_t{p.r} * d.C + p.c, d.C);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    Factor by{};
    uint32_t word;

    if constexpr (kGrouped) {
      by.f = Blocks::fetch(factor, p.lane, i);
      word = d.form == ValueForm::none ? 0u : Blocks::fetch(value, p.lane, i);
      if constexpr (kStep == Step::divide) by.reciprocal = Blocks::fetch(reciprocal, p.lane, i);
    } else {
      by.f =
          kAxis == 0 ? __shfl_sync(0xFFFFFFFFu, factor[0], i, 8) : __shfl_sync(0xFFFFFFFFu, factor[i % kOwn], (p.lane & 7) | (i >> 1) << 3);
      word = __float_as_uint(1.0f);
    }
    if constexpr (kStochastic && kAxis == 0) draw8(d.draws, d.draws.first + int64_t{p.r + i} * d.draws.row + p.c / 8, draws.v[i]);
    const Codes8 q = encode8<kCoder, kStep, kStochastic>(x[i], by, d.low, d.high, [&](int k) { return draws.template at<kCoder>(i, k); });
    if (i < valid) emit8<kCoder>(out, d.lost, q, by.f != by.f, word);
    out.next();
  }
}

}  // namespace halftone::device
