#pragma once
#include "halftone/quantize/cuda/amax8.cuh"
#include "halftone/quantize/cuda/emit.cuh"

namespace halftone::device {

// Where a thread's 8 x 8 elements lie in a copy: vector i is element (R, C) = (r + i, c) to (r + i, c + 7) of it.
struct Place {
  int lane, warp, r, c;
  bool first_tile;  // of the tiles along C: this thread block writes the scales of whole rows
  bool wide;        // TileArgs
};

// The scale of one e2m1, e4m3 or e5m2 block of 16 or 32 and what its elements and values need.
struct BlockResult {
  uint32_t byte;
  float factor, scale;
};
template <Step kStep, int kBlock>
__device__ __forceinline__ BlockResult block_rule(const CopyArgs& d, uint32_t amax, ScalePair outer, float outer_reciprocal) {
  if constexpr (kBlock == 32) {
    const uint32_t byte = mx_byte(d.mx, amax);
    const float inverse = mx_inverse_of(byte);
    return {byte, d.fixed_clip ? 0.75f * inverse : inverse, e8m0_value(byte)};
  }
  constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
  const uint32_t byte = fp4_byte(kChain, d.wide, amax, outer, outer_reciprocal);
  const float value = fp4_scale_value(d.wide, byte);
  return {byte, fp4_element_factor(kChain, value, outer), value};
}

// Scale of a tensor, row or 128-block of fp8 or integers. negative: int4's second maximum.
template <Coder kCoder>
__device__ __forceinline__ ScalePair group_rule(const CopyArgs& d, uint32_t amax, uint32_t negative) {
  if constexpr (kCoder == Coder::integer) {
    if (d.element == Element::int4) return int4_scale(amax, negative, d.scale_floor);
    return int8_scale(amax, d.scale_floor);
  }
  return fp8_scale(float_of(kCoder), d.pow2, amax);
}

// The scales of the rows that a lane owns where an earlier pass has found their maxima or the tensor's: read for both copies before
// either is computed, and computed before the elements are there.
template <Coder kCoder, int kAxis>
struct Groups {
  static constexpr int kOwn = kAxis == 0 ? 1 : 2;
  uint32_t amax[kOwn], negative[kOwn];
  float factor[kOwn];
  static __device__ __forceinline__ int first(int lane) { return kAxis == 0 ? lane & 7 : (lane >> 3) * 2; }
  // Whether the thread writes them, of those of a tile's eight warps that own the same.
  static __device__ __forceinline__ bool writes(const Place& p) { return kAxis == 0 ? (p.warp & 1) == 0 : (p.warp >> 1) == 0; }

  // Whether an earlier pass has made the scale; reading it before the copy is written costs 2 us of 60 more than in its turn.
  static __device__ __forceinline__ bool is_made(const CopyArgs& d) { return kCoder == Coder::integer && d.scale_pair != nullptr; }

  __device__ __forceinline__ void read(const CopyArgs& d, const Place& p, uint32_t tensor_amax) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = p.r + first(p.lane) + j;
      const bool has = d.group_amax != nullptr && r < d.R;
      amax[j] = d.per_tensor ? tensor_amax : has ? d.group_amax[r] : 0u;
      negative[j] = 0;
      if (kCoder == Coder::integer && d.element == Element::int4 && has) negative[j] = d.group_amax[d.R + r];
    }
  }
  __device__ __forceinline__ void make(const CopyArgs& d, const Place& p) {
    auto* scales = static_cast<float*>(d.scales);
    const bool writer = scales != nullptr && p.first_tile && writes(p);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = p.r + first(p.lane) + j;
      const ScalePair s = is_made(d) ? *d.scale_pair : group_rule<kCoder>(d, amax[j], negative[j]);
      if (writer && r < (d.per_tensor ? 1 : d.R)) scales[r] = s.scale;
      factor[j] = s.inv;
    }
  }
};

// Draws of a thread's elements: along axis 0 a vector is one group, along axis 1 its elements belong to eight.
template <int kAxis>
struct TileDraws {
  uint32_t v[8][4];  // two rows of them at a time along axis 0
  uint32_t constant;
  template <Coder kCoder>
  __device__ __forceinline__ uint32_t at(int vector, int i) const {
    const int group = kAxis == 0 ? vector : i, element = kAxis == 0 ? i : vector;
    const uint32_t word = v[group][element >> 1];
    if constexpr (kCoder == Coder::integer) return (element & 1) == 0 ? draw_number<0>(word) : draw_number<1>(word);
    return (element & 1) == 0 ? place_draw<0>(word, constant) : place_draw<1>(word, constant);
  }
};

template <int kAxis>
__device__ __forceinline__ uint32_t first_group(const CopyArgs& d, const Place& p) {
  return d.draws.first + static_cast<uint32_t>(kAxis == 0 ? p.r : p.c) * d.draws.row + static_cast<uint32_t>(kAxis == 0 ? p.c : p.r) / 8;
}
// Whether draws of a transposed copy, which follow from positions alone, are made while the elements come: where no row copy is made before
// that copy, for which they would have to wait in registers.
template <class T>
constexpr bool draws_early(Coder coder, int block, Copies copies) {
  return sizeof(T) == 2 && coder == Coder::integer && block == 0 && copies == Copies::transposed;
}

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

// The words that a block's values need, from the lane that owns its scale; only those that the form has.
template <Coder kCoder, class Blocks, Form kForm>
__device__ __forceinline__ ValueWords fetch_words(const Outputs<kForm>& out, const ValueWords (&own)[Blocks::kCount], int lane, int i) {
  uint32_t word[Blocks::kCount];
  ValueWords r{};
  const auto one = [&](uint32_t ValueWords::*member) {
#pragma unroll
    for (int j = 0; j < Blocks::kCount; ++j) word[j] = own[j].*member;
    return Blocks::fetch(word, lane, i);
  };
  r.first = one(&ValueWords::first);
  if (kCoder == Coder::e2m1 && out.has(kFolded)) {
    r.second = one(&ValueWords::second);
    if (out.has(kLost)) r.below = one(&ValueWords::below);
  }
  return r;
}

// Memory of a thread block for what threads would write in pieces smaller than a line: scale bytes of a tile, [vector][block],
// and the elements of a transposed copy, [vector][16 chunks of eight elements]. A chunk has kBytes, 4 (packed), 8 or 16 (bf16);
// chunks change places within a vector against bank conflicts, those of 16 bytes together.
struct StagedScales {
  alignas(16) uint8_t scales[kTile][8];
};
template <int kBytes>
__device__ __forceinline__ int staged_chunk(int vector, int chunk) {
  const int group = vector >> 3;
  return chunk ^ (kBytes == 4 ? (group & 3) << 2 : kBytes == 8 ? (group & 7) << 1 : group & 7);
}
// With TileArgs::wide: 16 bytes of scales a row; where those of the block that holds element (r, c) begin.
__device__ __forceinline__ uint8_t* wide_scale(StagedScales& staged, int r, int c) {
  return &staged.scales[0][0] + r % kWideRows * 16 + c % kWideColumns / 32;
}
// Bytes of a chunk of what a transposed copy stages, 0: nothing. Form::any: only packed codes. Kernels that wait for arithmetic
// rather than for memory do not: the second way through shared memory costs them more than whole lines save.
constexpr int staged_bytes(Coder coder, Step step, int block, bool stochastic, Form form, Copies copies) {
  const bool light = !stochastic && (block != 16 || (step == Step::multiply && copies == Copies::transposed));
  if (!light && form != Form::any && form != Form::packed) return 0;
  if (form == Form::bf16) return 16;
  if (form == Form::codes || form == Form::folded) return 8;
  return coder == Coder::e2m1 || coder == Coder::integer ? 4 : 0;
}

// One copy of the thread's elements: scales, codes, stores. kBlock: 16 or 32 (e8m0, e4m3, ue5m3 scales), 128 or 0 (fp32
// scales: of the block from `shared_amax`, or `groups` of an earlier pass). x: vectors along C. shared_amax: of the vectors that the
// lane owns, 128-blocks only. elements: where those of a transposed copy are staged.
template <Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form kForm, Copies kCopies, int kAxis, class T>
__device__ __forceinline__ void pass(const CopyArgs& d, const Place& p, const Vec8<T> (&x)[8], const Amax8<T>& amax,
                                     const uint32_t (&shared_amax)[2], uint32_t tensor_amax, Groups<kCoder, kAxis>& groups,
                                     TileDraws<kAxis>& draws, StagedScales& staged, uint8_t* elements) {
  constexpr bool kGrouped = kBlock == 16 || kBlock == 32;
  using Blocks = Owned<T, kAxis, kBlock == 16 ? 2 : 4>;
  constexpr int kOwn = kGrouped ? Blocks::kCount : kAxis == 0 ? 1 : 2;
  Outputs<kForm> out(d, int64_t{p.r} * d.C + p.c, static_cast<uint32_t>(d.C));
  const bool has_values = out.has(kBf16 | kFolded), has_folded = kCoder == Coder::e2m1 && out.has(kFolded);
  float factor[kOwn], reciprocal[kOwn];
  ValueWords value[kOwn];
  if constexpr (kGrouped) {
    ScalePair outer{1, 1};
    float outer_reciprocal = 1;
    if constexpr (kBlock == 16) {
      constexpr Fp4Chain kChain = kStep == Step::divide ? Fp4Chain::alto : Fp4Chain::torchao;
      outer = fp4_outer(kChain, d.wide ? ScaleFormat::ue5m3 : ScaleFormat::e4m3, d.two_level, tensor_amax);
      outer_reciprocal = divisor(outer.scale).reciprocal;
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
    uint32_t reference = 0, references[kOwn] = {};
    if (has_folded && d.form == ValueForm::fold_e4m3) fold_references<kOwn>(d, p, first, references);
    if (has_folded && d.form == ValueForm::fold_e5m2) {
      reference = mx_byte(d.mx, tensor_amax);
      if (p.r == 0 && p.c == 0) *d.fold_scale = reference == 255 ? quiet_nan() : fold_scale(Float::e5m2, static_cast<int>(reference) - 127);
    }
    const int local = p.r % kTile, block = p.c % kTile / kBlock;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const BlockResult b = block_rule<kStep, kBlock>(d, own.amax[j], outer, outer_reciprocal);
      factor[j] = b.factor;
      if (has_folded && d.form == ValueForm::fold_e4m3) reference = references[j];
      if (has_values) value[j] = value_words<kCoder, kForm>(d, b.scale, b.byte, reference);
      if constexpr (kStep == Step::divide) reciprocal[j] = divisor(b.factor).reciprocal;
      uint8_t* scale = kBlock == 32 && p.wide ? wide_scale(staged, p.r + first + j, p.c) : &staged.scales[local + first + j][block];
      *scale = static_cast<uint8_t>(b.byte);
    }
  } else {
    if (d.outer != nullptr && p.r == 0 && p.c == 0) *d.outer = 1;
    if constexpr (kBlock == 0) {
      if (groups.is_made(d)) groups.make(d, p);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) factor[j] = groups.factor[j];
    } else {
      auto* scales = static_cast<float*>(d.scales);
      const bool writer = scales != nullptr && groups.writes(p);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int r = p.r + groups.first(p.lane) + j, block = p.c / kBlock;
        const ScalePair s = group_rule<kCoder>(d, shared_amax[j], 0);
        if (p.wide) {
          if (writer) *reinterpret_cast<float*>(wide_scale(staged, r, block * kBlock)) = s.scale;
        } else if (d.scale_tiles != nullptr) {
          auto* out = static_cast<uint32_t*>(d.scale_tiles) + (int64_t{p.r / kTile} * d.tiles_c + block) * kTile;
          if (writer && block < d.tiles_c && p.r / kTile * kTile < d.R) store_kept(out + r % kTile, __float_as_uint(s.scale));
        } else if (writer && r < d.R && block * kBlock < d.C) {
          if (!d.tile) scales[int64_t{r} * d.blocks + block] = s.scale;
          if (d.tile && r % kBlock == 0) scales[int64_t{r / kBlock} * d.blocks + block] = s.scale;
        }
        factor[j] = s.inv;
      }
    }
  }

  const uint32_t group = first_group<kAxis>(d, p);
  const StepWords step = kStochastic ? step_words(d.draws) : StepWords{};
  if constexpr (kStochastic)
    draws.constant = __shfl_sync(0xFFFFFFFFu, d.draw_constant, 0);  // in a register, where the compiler does not copy it for every use
  if constexpr (kStochastic && kAxis == 1 && !draws_early<T>(kCoder, kBlock, kCopies)) draw8<8>(d.draws, step, group, d.draws.row, draws.v);
  const int valid = p.c < d.C ? min(max(d.R - p.r, 0), 8) : 0;
  constexpr int kBytes = kAxis == 1 ? staged_bytes(kCoder, kStep, kBlock, kStochastic, kForm, kCopies) : 0;
  if constexpr (kBytes != 0) {
    const int vector = p.r % kTile;
    uint8_t* at = elements + (vector * 16 + staged_chunk<kBytes>(vector, p.c % kTile / 8)) * kBytes;
    if constexpr (kBytes == 4) {
      if (out.has(kPacked)) out.packed = at, out.packed_stride = kTile / 2;
    } else {
      out.codes = out.values = at, out.stride = kTile;
    }
  }
  const auto write = [&]<bool kPlain, bool kClamp>() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      Factor by{};
      ValueWords words{__float_as_uint(1.0f), 0, 0};
      if constexpr (kGrouped) {
        by.f = Blocks::fetch(factor, p.lane, i);
        if constexpr (kStep == Step::divide) by.reciprocal = Blocks::fetch(reciprocal, p.lane, i);
        if (has_values) words = fetch_words<kCoder, Blocks>(out, value, p.lane, i);
      } else {
        by.f = kAxis == 0 ? __shfl_sync(0xFFFFFFFFu, factor[0], i, 8)
                          : __shfl_sync(0xFFFFFFFFu, factor[i % kOwn], (p.lane & 7) | (i >> 1) << 3);
      }
      if constexpr (kStochastic && kAxis == 0) {
        if (i % 2 == 0) draw8<2>(d.draws, step, group + i * d.draws.row, d.draws.row, draws.v + i);
      }
      const Codes8 q =
          encode8<kCoder, kStep, kStochastic, kClamp>(x[i], by, d.low, d.high, [&](int k) { return draws.template at<kCoder>(i, k); });
      if (kPlain || i < valid) emit8<kCoder, place_of(kStep, kStochastic)>(out, i, d.lost, q, !kPlain && by.f != by.f, words);
    }
  };
  // Where all is whole and finite, as it is nearly everywhere, nothing is asked vector by vector.
  if constexpr (!kGrouped && !kStochastic) {
    bool plain = valid == 8;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) plain = plain && factor[j] == factor[j];
    if (__all_sync(0xFFFFFFFFu, plain)) {
      if (kCoder == Coder::integer && !d.in_range) return write.template operator()<true, true>();
      return write.template operator()<true, false>();
    }
  }
  if constexpr (kCoder == Coder::integer && kStochastic && sizeof(T) == 2) {
    if (d.in_range) return write.template operator()<false, false>();
  }
  write.template operator()<false, kBlock != 128>();  // 128-blocks: the scale follows from the largest magnitude
}

// Scale bytes of a tile, eight warps or the half of them that `thread` counts: kTile vectors, 128 / kBlock blocks of each; or of half of
// one, along either.
template <int kBlock, int kEach = kTile / kBlock, int kVectors = kTile>
__device__ __forceinline__ void flush_scales(const CopyArgs& d, const StagedScales& staged, int r0, int c0, int thread) {
  auto* scales = static_cast<uint8_t*>(d.scales);
  if (scales == nullptr || thread < 0 || thread >= kVectors) return;
  if (kBlock != 16 && kEach == 4 && d.scale_tiles != nullptr) {
    if (c0 >= d.C || r0 >= d.R) return;
    store_kept(static_cast<uint32_t*>(d.scale_tiles) + (int64_t{r0 / kTile} * d.tiles_c + c0 / kTile) * kTile + thread,
               *reinterpret_cast<const uint32_t*>(staged.scales[thread]));
    return;
  }
  const int first = c0 / kBlock, count = min(d.blocks - first, kEach);
  int r = r0 + thread;
  if (d.tile) {
    if (thread % kBlock != 0) return;
    r /= kBlock;
  }
  if (r0 + thread >= d.R) return;
  uint8_t* out = scales + int64_t{r} * d.blocks + first;
  if (count == kEach && reinterpret_cast<uintptr_t>(out) % kEach == 0) {
    if constexpr (kEach == 4) *reinterpret_cast<uint32_t*>(out) = *reinterpret_cast<const uint32_t*>(staged.scales[thread]);
    if constexpr (kEach == 8) *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(staged.scales[thread]);
    return;
  }
  for (int i = 0; i < count; ++i) out[i] = staged.scales[thread][i];
}

// The same with TileArgs::wide, where rows of scales are whole pieces of 16 bytes (arranges).
template <int kBlock>
__device__ __forceinline__ void flush_wide_scales(const CopyArgs& d, const StagedScales& staged, int r0, int c0, int thread) {
  const int r = r0 + thread;
  if (thread >= kWideRows || r >= d.R || c0 >= d.C) return;
  uint8_t* out = static_cast<uint8_t*>(d.scales) + int64_t{r} * d.blocks * (kBlock == kTile ? 4 : 1) + c0 / 32;
  *reinterpret_cast<uint4*>(out) = reinterpret_cast<const uint4*>(staged.scales)[thread];
}

// The staged elements of a transposed copy, 16 bytes a thread and step, whole lines a warp.
template <int kBytes, int kThreads = kTileThreads, int kVectors = kTile>
__device__ __forceinline__ void flush_elements(uint8_t* to, const CopyArgs& d, const uint8_t* staged, int r0, int c0, int thread) {
  constexpr int kPieces = kBytes, kEach = kTile / kPieces, kStep = kThreads / kPieces;  // pieces of a vector, elements, vectors a step
  const int c = c0 + thread % kPieces * kEach;
  if (to == nullptr || c >= d.C) return;
  int vector = thread / kPieces;
  uint8_t* out = to + (int64_t{r0 + vector} * d.C + c) * kBytes / 8;
  const int64_t step = int64_t{kStep} * d.C * kBytes / 8;
  const bool whole = c + kEach <= d.C && reinterpret_cast<uintptr_t>(out) % 16 == 0 && step % 16 == 0;
#pragma unroll
  for (int i = 0; i < kVectors / kStep; ++i, vector += kStep, out += step) {
    if (r0 + vector >= d.R) return;
    const uint4 w =
        *reinterpret_cast<const uint4*>(staged + (vector * 16 + staged_chunk<kBytes>(vector, thread % kPieces * (16 / kBytes))) * kBytes);
    if (kBytes == 16 || whole) {
      *reinterpret_cast<uint4*>(out) = w;
    } else if constexpr (kBytes == 8) {
      auto* parts = reinterpret_cast<uint2*>(out);
      parts[0] = {w.x, w.y};
      if (c + 8 < d.C) parts[1] = {w.z, w.w};
    } else {
      auto* parts = reinterpret_cast<uint32_t*>(out);
      parts[0] = w.x;
      if (c + 8 < d.C) parts[1] = w.y;
      if (c + 16 < d.C) parts[2] = w.z;
      if (c + 24 < d.C) parts[3] = w.w;
    }
  }
}

}  // namespace halftone::device
