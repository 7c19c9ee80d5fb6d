#include "halftone/quantize/cuda/generic.h"

#include <algorithm>

#include "halftone/device/launch.h"
#include "halftone/device/vec.cuh"
#include "halftone/formats/bf16_round.h"
#include "halftone/formats/eden.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/int_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/pairwise_sum.h"
#include "halftone/formats/scale_choice.h"
#include "halftone/quantize/cuda/draws.cuh"
#include "halftone/quantize/cuda/gathered_rows.cuh"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

// Workspace, one allocation.
struct Scratch {
  uint32_t* amax;                // [sets] amax of the tensor
  ScalePair* ternary;            // [sets]
  void* sums;                    // partial sums of ternary
  int32_t* tile_groups;          // map_groups
  float* fold;                   // with groups of rows: fold scales of every set
  void* rotated;                 // MS-EDEN: the rotated matrix in fp32
  uint16_t* macro;               // [macro blocks]: byte, bit 8 when poisoned
  float *factor, *zero, *scale;  // [groups]
  uint8_t* byte;                 // [groups]
  size_t bytes;
};

struct Generic {
  const void* x;  // [rows, cols], or the rotated matrix
  DType type;
  bool as_bf16;  // quantize/operand.h
  int64_t rows, cols, ld, given_cols;
  RowSource from;
  bool transposed;
  QuantizedCopy copy;
  int64_t R, C, group_rows, group_cols, across, groups;  // across: groups along C
  int64_t of_set;                                        // scale groups per set; 0: all scales are per block or per row
  const uint32_t* amax;
  Scratch scratch;
  RowGroups row_groups;
  float* fold;  // one per set, per vector, or per vector of each set
};

struct Shape {
  int64_t R, C, group_rows, group_cols, across, groups, macros, of_set;
};
bool has_groups(const QuantizeOperand& p) { return p.groups.groups > 0; }
int64_t sets_in(const QuantizeOperand& p) { return has_groups(p) ? sets_of(p.groups) : 1; }
Shape shape_of(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  Shape s{};
  s.R = transposed ? p.cols : p.rows, s.C = operand_length(copy, transposed ? p.rows : p.cols);
  const BlockShape b = block_shape(copy.spec, s.R, s.C);
  s.group_rows = b.rows, s.group_cols = b.cols, s.across = ceil_div(s.C, b.cols);
  s.groups = ceil_div(s.R, b.rows) * s.across;
  if (copy.spec.granularity == Granularity::tensor) s.groups = 1;
  if (copy.spec.granularity == Granularity::row) s.groups = s.R, s.across = 1;
  s.across = std::max<int64_t>(s.across, 1);
  if (has_groups(p) && (copy.spec.granularity == Granularity::tensor || (copy.spec.granularity == Granularity::row && transposed)))
    s.of_set = s.groups, s.groups *= sets_in(p);
  s.macros = ceil_div(s.R, copy.spec.granularity == Granularity::tile ? 128 : 1) * ceil_div(s.C, 128);
  return s;
}

Scratch plan(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* memory) {
  const Shape s = shape_of(p, copy, transposed);
  auto* base = static_cast<uint8_t*>(memory);
  Scratch r{};
  const auto take = [&](size_t n) {
    uint8_t* at = base == nullptr ? nullptr : base + r.bytes;
    r.bytes += (n + 255) / 256 * 256;
    return at;
  };
  const auto sets = static_cast<size_t>(sets_in(p));
  r.amax = reinterpret_cast<uint32_t*>(take(sets * 4));
  r.ternary = reinterpret_cast<ScalePair*>(take(sets * sizeof(ScalePair)));
  r.sums = take(copy.spec.element == Element::ternary ? ternary_workspace(p) : 0);
  r.tile_groups = reinterpret_cast<int32_t*>(take(has_groups(p) ? static_cast<size_t>(p.rows / kGroupRows) * 4 : 0));
  r.fold =
      reinterpret_cast<float*>(take(has_groups(p) && is_fold(copy.form) ? sets * static_cast<size_t>(std::max<int64_t>(s.R, 1)) * 4 : 0));
  r.rotated = take(copy.spec.eden ? static_cast<size_t>(s.R * s.C) * 4 : 0);
  r.macro = reinterpret_cast<uint16_t*>(take(copy.spec.two_level == TwoLevel::macro ? static_cast<size_t>(s.macros) * 2 : 0));
  r.factor = reinterpret_cast<float*>(take(static_cast<size_t>(s.groups) * 4));
  r.zero = reinterpret_cast<float*>(take(static_cast<size_t>(s.groups) * 4));
  r.scale = reinterpret_cast<float*>(take(copy.spec.element == Element::uint4 ? static_cast<size_t>(s.groups) * 4 : 0));
  r.byte = take(static_cast<size_t>(s.groups));
  return r;
}

// Set of matrix rows (sets_of) that contains an element of the copy.
__device__ int64_t set_of(const Generic& g, int64_t r, int64_t c) {
  return g.row_groups.groups == 0 ? 0 : g.scratch.tile_groups[(g.transposed ? c : r) / kGroupRows];
}
// Range of the copy that a scale group covers.
struct Part {
  int64_t r0, r1, c0, c1, set;
};
__device__ Part part_of(const Generic& g, int64_t group) {
  const int64_t local = g.of_set > 0 ? group % g.of_set : group;
  const int64_t r0 = local / g.across * g.group_rows, c0 = local % g.across * g.group_cols;
  Part p{r0, min(g.R, r0 + g.group_rows), c0, min(g.C, c0 + g.group_cols), 0};
  if (g.of_set > 0) {
    p.set = group / g.of_set;
    const int64_t begin = first_row(g.row_groups, p.set, g.rows), end = first_row(g.row_groups, p.set + 1, g.rows);
    if (g.transposed) {
      p.c0 = begin, p.c1 = end;
    } else {
      p.r0 = begin, p.r1 = end;
    }
  } else if (r0 < g.R && c0 < g.C) {
    p.set = set_of(g, r0, c0);
  }
  return p;
}

__device__ float given(const Generic& g, int64_t i, int64_t j) {
  const bool bf16s = g.type == DType::bf16;
  float weight = 1;
  if (g.from.source != nullptr) {
    const SourceRow from(g.from, i);
    if (from.row < 0) return 0;
    i = from.row, weight = from.weight;
  }
  const int64_t at = i * g.ld + j;
  float v = bf16s ? to_f32(static_cast<const bf16*>(g.x)[at]) : static_cast<const float*>(g.x)[at];
  if (g.from.weight != nullptr) v *= weight;
  return (bf16s && g.from.weight != nullptr) || g.as_bf16 ? bf16_nearest(v) : v;
}
// Element of the copy before macro scaling.
__device__ float plain_element(const Generic& g, int64_t r, int64_t c) {
  const int64_t i = g.transposed ? c : r, j = g.transposed ? r : c;
  return i < g.rows && j < g.cols ? given(g, i, j) : 0.0f;
}
__device__ float scaled_element(const Generic& g, int64_t r, int64_t c) {
  const float v = plain_element(g, r, c);
  if (g.copy.spec.two_level != TwoLevel::macro) return v;
  const int64_t high = g.copy.spec.granularity == Granularity::tile ? 128 : 1;
  const uint16_t m = g.scratch.macro[r / high * ceil_div(g.C, 128) + c / 128];
  return m >> 8 != 0 ? quiet_nan() : v * inv_macro(static_cast<uint8_t>(m));
}

__device__ uint32_t block_max(uint32_t a) {
  __shared__ uint32_t warps[kThreads / 32];
  a = __reduce_max_sync(0xFFFFFFFFu, a);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = a;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) a = max(a, warps[i]);
  return a;
}
// Sum, or maximum, over the thread block.
__device__ int block_errors(bool largest, int a) {
  __shared__ int warps[kThreads / 32];
  a = largest ? __reduce_max_sync(0xFFFFFFFFu, a) : __reduce_add_sync(0xFFFFFFFFu, a);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = a;
  __syncthreads();
  a = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) a = largest ? max(a, warps[i]) : a + warps[i];
  return a;
}
__device__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7FFFFFFFu; }

// One thread per rotation group of a copy; out: the matrix that the copy's groups lie in.
template <int kWidth>
__global__ void rotate_kernel(Generic g, void* out, DType type) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, across = g.C / kWidth;
  if (i >= g.R * across) return;
  const int64_t r = g.transposed ? i % g.R : i / across, c = (g.transposed ? i / g.R : i % across) * kWidth;
  float v[kWidth];
  for (int j = 0; j < kWidth; ++j) v[j] = plain_element(g, r, c + j);
  hadamard(v, rotation_signs(g.copy));
  for (int j = 0; j < kWidth; ++j) {
    const int64_t at = g.transposed ? (c + j) * g.R + r : r * g.C + c + j;
    if (type == DType::f32) {
      static_cast<float*>(out)[at] = v[j];
    } else {
      static_cast<bf16*>(out)[at].bits = bf16_bits(v[j]);
    }
  }
}

// One thread block per macro block.
__global__ void macro_kernel(Generic g, int64_t macros) {
  const int64_t high = g.copy.spec.granularity == Granularity::tile ? 128 : 1, across = ceil_div(g.C, 128);
  for (int64_t m = blockIdx.x; m < macros; m += gridDim.x) {
    const int64_t r0 = m / across * high, c0 = m % across * 128, wide = min(g.C - c0, int64_t{128}), n = min(g.R - r0, high) * wide;
    uint32_t a = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) a = max(a, magnitude(plain_element(g, r0 + i / wide, c0 + i % wide)));
    a = block_max(a);
    if (threadIdx.x != 0) continue;
    const uint8_t byte = macro_byte(a);
    g.scratch.macro[m] = static_cast<uint16_t>(byte | (poisoned(a) ? 256 : 0));
    if (g.copy.macro != nullptr) g.copy.macro[m] = byte;
  }
}

__device__ uint8_t clipped_byte(const Generic& g, int64_t r, int64_t c, int64_t n) {
  const double sum = pairwise_sum(n, [&](int64_t i) { return static_cast<double>(scaled_element(g, r, c + i)); });
  const double squares = pairwise_sum(n, [&](int64_t i) {
    const double v = scaled_element(g, r, c + i);
    return v * v;
  });
  return clip_scale_byte(static_cast<float>(sqrt(clip_variance(sum, squares, static_cast<int>(n)))));
}

// Block scale with the smaller error; every thread of the block gets it.
__device__ uint8_t chosen_scale(const Generic& g, const Part& part, uint32_t amax, ScalePair outer) {
  const OperandSpec& s = g.copy.spec;
  const ScaleCandidates c = scale_candidates(s.chain, s.scale, amax, outer);
  if (c.six == c.four || c.four_anyway) return c.four;
  const int64_t wide = part.c1 - part.c0, n = (part.r1 - part.r0) * wide;
  ChoiceErrors e;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) e.add(s.choice, c, scaled_element(g, part.r0 + i / wide, part.c0 + i % wide));
  const bool largest = s.choice == ScaleChoice::largest;
  e.six = block_errors(largest, e.six), e.four = block_errors(largest, e.four);
  return takes_four(s.choice, decode_block_scale(s.scale, c.six), decode_block_scale(s.scale, c.four), e) ? c.four : c.six;
}

// One thread block per scale group: computes its encoding parameters and the copy's scales.
__global__ void scales_kernel(Generic g) {
  const OperandSpec& s = g.copy.spec;
  const auto outer_of = [&](int64_t set) { return fp4_outer(s.chain, fp4_range(s), s.two_level, g.amax[set]); };
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; g.copy.outer != nullptr && i < max(g.row_groups.groups, int64_t{1});
       i += int64_t{gridDim.x} * blockDim.x)
    g.copy.outer[i] = outer_of(i).scale;
  for (int64_t group = blockIdx.x; group < g.groups; group += gridDim.x) {
    const auto [r0, r1, c0, c1, set] = part_of(g, group);
    const int64_t wide = c1 - c0, n = wide <= 0 ? 0 : (r1 - r0) * wide;
    const ScalePair outer = outer_of(set);
    uint32_t a = s.granularity == Granularity::tensor ? g.amax[set] : 0u;
    int32_t low = 0x7FFFFFFF, high = -low - 1;
    if (s.granularity != Granularity::tensor || s.element == Element::int4) {
      uint32_t own = 0;
      for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = scaled_element(g, r0 + i / wide, c0 + i % wide);
        own = max(own, magnitude(v)), low = min(low, order_key(v)), high = max(high, order_key(v));
      }
      own = block_max(own);
      if (s.granularity != Granularity::tensor) a = own;
      // Signed maximum through the unsigned one: the offset preserves the order.
      high = static_cast<int32_t>(block_max(static_cast<uint32_t>(high) ^ 0x80000000u) ^ 0x80000000u);
      low = static_cast<int32_t>(~block_max(~(static_cast<uint32_t>(low) ^ 0x80000000u)) ^ 0x80000000u);
    }
    uint8_t byte = s.choice == ScaleChoice::amax ? 0 : chosen_scale(g, {r0, r1, c0, c1, set}, a, outer);
    if (threadIdx.x != 0) continue;
    float factor = 0, zero = 0, scale = 0;
    bool bytes = true;
    if (s.scale == ScaleFormat::e8m0) {
      byte = mx_scale_byte(MxElement(s.element), s.mode, a);
      if (s.clip == Clip::dynamic && !poisoned(a)) byte = clipped_byte(g, r0, c0, n);
      factor = mx_inverse(byte, s.clip == Clip::fixed);
    } else if (s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3) {
      if (s.choice == ScaleChoice::amax) byte = fp4_block_scale(s.chain, s.scale, a, outer, largest_code(s.element));
      factor = fp4_factor(s.chain, s.scale, byte, outer);
    } else {
      bytes = false;
      ScalePair pair{};
      if (s.element == Element::int8) {
        pair = int8_scale(a, s.scale_floor);
      } else if (s.element == Element::int4) {
        pair = int4_scale(high < 0 ? 0 : magnitude(from_order_key(high)), low >= 0 ? 0 : magnitude(from_order_key(low)), s.scale_floor);
      } else if (s.element == Element::uint4) {
        const AffineScale u = uint4_scale(a, from_order_key(low), from_order_key(high), s.scale == ScaleFormat::bf16);
        pair = {u.scale, u.inv}, zero = u.zero;
      } else if (s.element == Element::ternary) {
        pair = g.scratch.ternary[set];
      } else {
        pair = fp8_scale(float_of(s.element), s.scale == ScaleFormat::fp32_pow2, a);
      }
      factor = pair.inv, scale = pair.scale;
    }
    if (g.copy.scales != nullptr && (g.of_set == 0 || set < g.row_groups.groups)) {
      if (bytes) {
        static_cast<uint8_t*>(g.copy.scales)[group] = byte;
      } else {
        static_cast<float*>(g.copy.scales)[group] = scale;
      }
    }
    if (g.copy.zeros != nullptr && s.element == Element::uint4) g.copy.zeros[group] = zero;
    if (s.element == Element::uint4) g.scratch.scale[group] = scale;
    g.scratch.factor[group] = factor, g.scratch.zero[group] = zero, g.scratch.byte[group] = byte;
  }
}

__device__ uint16_t draw_of(const Generic& g, int64_t r, int64_t c) {
  Rounding how = g.copy.rounding;
  if (how.device_step != nullptr) how.step = *how.device_step;
  return sr_bits16(how, g.transposed ? how.index(c, r, g.given_cols) : how.index(r, c, g.given_cols));
}

// MS-EDEN: one thread per rotation group, x: the rotated matrix.
__global__ void eden_kernel(Generic g) {
  const int width = g.copy.spec.hadamard, blocks = width / kEdenBlock;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; g.copy.outer != nullptr && i < max(g.row_groups.groups, int64_t{1});
       i += int64_t{gridDim.x} * blockDim.x)
    g.copy.outer[i] = eden_outer(width, g.amax[i]).scale;
  const int64_t across = g.C / width;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < g.R * across; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / across, c0 = i % across * width;
    const ScalePair outer = eden_outer(width, g.amax[set_of(g, r, c0)]);
    bool bad = outer.scale != outer.scale;
    float scales[128 / kEdenBlock], factors[128 / kEdenBlock];
    EdenSums sums[128 / kEdenBlock];
    for (int b = 0; b < blocks; ++b) {
      uint32_t a = 0;
      for (int e = 0; e < kEdenBlock; ++e) a = max(a, magnitude(plain_element(g, r, c0 + b * kEdenBlock + e)));
      bad = bad || poisoned(a);
      scales[b] = bad ? 0.0f : decode(Float::e4m3, eden_block_scale(a, outer)), factors[b] = eden_factor(scales[b], outer);
      EdenSums of[kEdenBlock];
      for (int e = 0; e < kEdenBlock; ++e) {
        const float y = plain_element(g, r, c0 + b * kEdenBlock + e) * factors[b];
        of[e] = {y * y, y * decode(Float::e2m1, encode(Float::e2m1, y))};
      }
      sums[b] = eden_weighted(eden_sum(of, kEdenBlock), scales[b]);
    }
    const float correction = eden_correction(eden_sum(sums, blocks));
    for (int b = 0; b < blocks; ++b) {
      const int64_t c = c0 + b * kEdenBlock, group = r * g.across + c / kEdenBlock;
      const uint8_t byte = bad ? poison_code(Float::e4m3) : eden_rounded(scales[b], correction, draw_of(g, r, c));
      g.scratch.factor[group] = bad ? quiet_nan() : factors[b], g.scratch.byte[group] = byte;
      if (g.copy.scales != nullptr) static_cast<uint8_t*>(g.copy.scales)[group] = byte;
    }
  }
}

__device__ int64_t group_of(const Generic& g, int64_t r, int64_t c) {
  const int64_t first = g.of_set > 0 ? set_of(g, r, c) * g.of_set : 0;
  if (g.copy.spec.granularity == Granularity::tensor) return first;
  return g.copy.spec.granularity == Granularity::row ? first + r : r / g.group_rows * g.across + c / g.group_cols;
}

// Fold scale of each row or of the tensor, per set.
__global__ void fold_kernel(Generic g) {
  const OperandSpec& s = g.copy.spec;
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, groups = g.row_groups.groups;
  const bool whole = g.copy.form == ValueForm::fold_e5m2, by_set = groups > 0 && (whole || g.transposed);
  const int64_t each = whole ? 1 : g.R, set = by_set ? i / each : 0, r = by_set ? i % each : i;
  if (i >= each * (by_set ? groups + 1 : 1)) return;
  uint8_t reference = 0;
  if (whole) {
    reference = mx_reference_byte(float_of(s.element), s.mode, s.clip, g.amax[set]);
  } else {
    const int64_t c0 = by_set ? first_row(g.row_groups, set, g.rows) : 0, c1 = by_set ? first_row(g.row_groups, set + 1, g.rows) : g.C;
    reference = c1 > c0 ? 0 : mx_lowest_byte(s.mode);
    for (int64_t c = c0; c < c1; c += g.group_cols) reference = max(reference, g.scratch.byte[group_of(g, r, c)]);
  }
  g.fold[i] = reference == kE8m0Nan ? quiet_nan() : fold_scale(whole ? Float::e5m2 : Float::e4m3, reference - 127);
  if (set < max(groups, int64_t{1})) g.copy.fold_scale[i] = g.fold[i];
}

__device__ uint8_t code_of(const Generic& g, int64_t r, int64_t c, int64_t group) {
  const OperandSpec& s = g.copy.spec;
  const float v = scaled_element(g, r, c), factor = g.scratch.factor[group];
  const bool chained = (s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3) && !s.eden;
  const float y = chained ? fp4_scaled(s.chain, v, factor) : (s.element == Element::uint4 ? v - g.scratch.zero[group] : v) * factor;
  const uint16_t u = s.stochastic ? draw_of(g, r, c) : uint16_t{0};
  if (is_float(s.element)) return s.stochastic ? encode_sr(float_of(s.element), y, u) : encode(float_of(s.element), y);
  return static_cast<uint8_t>(s.stochastic ? encode_sr(int_range(s), y, u) : encode(int_range(s), y));
}

__device__ void write_value(const Generic& g, int64_t i, int64_t r, int64_t c, int64_t group, uint8_t q) {
  const OperandSpec& s = g.copy.spec;
  if (is_fold(g.copy.form)) {
    const bool wide = g.copy.form == ValueForm::fold_e5m2;
    const Float target = wide ? Float::e5m2 : Float::e4m3;
    // Recovers e_ref from fold_kernel's scale: NaN, or 2^(e_ref - shift), an exact power of two, possibly subnormal.
    const int64_t set = wide || g.transposed ? set_of(g, r, c) : 0;
    const float scale = g.fold[wide ? set : set * g.R + r];
    const uint8_t block = g.scratch.byte[group];
    auto* out = static_cast<uint8_t*>(g.copy.values);
    if (scale != scale || block == kE8m0Nan) {
      out[i] = poison_code(target);
      return;
    }
    const int reference = ilogbf(scale) + fold_shift(target);
    const FoldedCode folded = fold_code(target, q, block - 127, reference);
    out[i] = folded.code;
    if (folded.changed && g.copy.lost != nullptr) atomicAdd(g.copy.lost, 1ull);
    return;
  }
  float v = is_float(s.element) ? decode(float_of(s.element), q) : static_cast<float>(static_cast<int8_t>(q));
  if (has_byte_scales(s.scale)) v *= decode_block_scale(s.scale, g.scratch.byte[group]);
  if (s.element == Element::uint4) {
    const float product = v * g.scratch.scale[group];
    v = g.scratch.zero[group] + product;
  }
  if (v != v) v = quiet_nan();
  if (g.copy.form == ValueForm::f32) {
    static_cast<float*>(g.copy.values)[i] = v;
  } else {
    static_cast<uint16_t*>(g.copy.values)[i] = bf16_bits(v);
  }
}

// Four elements per thread, so that packed codes fill whole bytes.
__global__ void codes_kernel(Generic g) {
  const int64_t first = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * 4, total = g.R * g.C;
  const int bits = bits_of(g.copy.spec.element);
  uint8_t q[4] = {};
  const int n = static_cast<int>(min(total - first, int64_t{4}));
  if (n <= 0) return;
  for (int k = 0; k < n; ++k) {
    const int64_t i = first + k, r = i / g.C, c = i % g.C, group = group_of(g, r, c);
    q[k] = code_of(g, r, c, group);
    if (g.copy.codes != nullptr) g.copy.codes[i] = q[k];
    if (g.copy.form != ValueForm::none) write_value(g, i, r, c, group, q[k]);
  }
  if (g.copy.packed == nullptr) return;
  uint8_t* out = g.copy.packed + first / 4 * bits / 2;
  if (bits == 4) {
    for (int k = 0; k < n; k += 2) out[k / 2] = pack4(q[k], q[k + 1]);
  } else if (bits == 2) {
    *out = pack2(q[0], q[1], q[2], q[3]);
  } else {
    const uint32_t word = pack6(q[0], q[1], q[2], q[3]);
    for (int k = 0; k < 3; ++k) out[k] = static_cast<uint8_t>(word >> 8 * k);
  }
}

// amax of each set, into zeroed memory; one thread block per tile.
__global__ void sets_amax_kernel(Generic g, uint32_t* out) {
  const int64_t row = int64_t{blockIdx.x} * kGroupRows, n = kGroupRows * g.cols;
  uint32_t a = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) a = max(a, magnitude(given(g, row + i / g.cols, i % g.cols)));
  a = block_max(a);
  if (threadIdx.x == 0) atomicMax(out + g.scratch.tile_groups[blockIdx.x], a);
}

Generic generic_of(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  const Shape s = shape_of(p, copy, transposed);
  return {p.x, p.type,       p.as_bf16,    p.rows,   p.cols,   p.ld,     p.cols, p.from, transposed, copy,           s.R,
          s.C, s.group_rows, s.group_cols, s.across, s.groups, s.of_set, p.amax, {},     p.groups,   copy.fold_scale};
}

unsigned blocks_of(int64_t items) { return static_cast<unsigned>(std::clamp<int64_t>(items, 1, int64_t{1} << 20)); }

}  // namespace

size_t generic_workspace(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  return plan(p, copy, transposed, nullptr).bytes;
}

cudaError_t rotate_matrix(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* out, DType type,
                          cudaStream_t stream) {
  const Generic g = generic_of(p, copy, transposed);
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(ceil_div(g.R * g.C / copy.spec.hadamard, 128), 1));
  with_width(copy.spec.hadamard, [&]<int kWidth> { rotate_kernel<kWidth><<<blocks, 128, 0, stream>>>(g, out, type); });
  return cudaGetLastError();
}

cudaError_t quantize_generic(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* workspace, cudaStream_t stream) {
  const Shape s = shape_of(p, copy, transposed);
  Generic g = generic_of(p, copy, transposed);
  g.scratch = plan(p, copy, transposed, workspace);
  const bool groups = has_groups(p);
  if (groups) g.fold = g.scratch.fold;
  cudaError_t status = cudaSuccess;
  if (groups) {
    const int64_t tiles = p.rows / kGroupRows;
    status = map_groups(p.groups, tiles, g.scratch.tile_groups, g.scratch.amax, sets_in(p), false, stream);
    if (tiles > 0) sets_amax_kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(g, g.scratch.amax);
    g.amax = g.scratch.amax;
  } else if (p.amax == nullptr || p.amax_parts != 1) {
    status = collect_amax(g.x, g.type, g.as_bf16, g.rows, g.cols, g.ld, g.scratch.amax, stream);
    g.amax = g.scratch.amax;
  }
  if (status == cudaSuccess && p.found_amax != nullptr && !groups) {
    status = cudaMemsetAsync(p.found_amax, 0, kAmaxParts * sizeof(uint32_t), stream);
    if (status == cudaSuccess) status = cudaMemcpyAsync(p.found_amax, g.amax, sizeof(uint32_t), cudaMemcpyDeviceToDevice, stream);
  }
  if (status == cudaSuccess && copy.spec.element == Element::ternary) {
    status = collect_ternary(p, g.scratch.sums, g.scratch.ternary, g.scratch.tile_groups, stream);
  }
  if (status != cudaSuccess) return status;
  if (copy.spec.two_level == TwoLevel::macro && s.macros > 0) macro_kernel<<<blocks_of(s.macros), 128, 0, stream>>>(g, s.macros);
  if (copy.spec.eden) {
    status = rotate_matrix(p, copy, transposed, g.scratch.rotated, DType::f32, stream);
    if (status != cudaSuccess) return status;
    g.x = g.scratch.rotated, g.type = DType::f32, g.from = {};
    (transposed ? g.rows : g.cols) = s.C, g.ld = g.cols;
    eden_kernel<<<blocks_of(ceil_div(s.R * s.C / copy.spec.hadamard, 64)), 64, 0, stream>>>(g);
  }
  const bool long_groups = copy.spec.granularity == Granularity::row || copy.spec.granularity == Granularity::tensor;
  if (!copy.spec.eden) scales_kernel<<<blocks_of(s.groups), long_groups ? kThreads : 32, 0, stream>>>(g);
  if (is_fold(copy.form) && copy.fold_scale != nullptr) {
    const int64_t folds = std::max<int64_t>(s.R, 1) * sets_in(p);
    fold_kernel<<<static_cast<unsigned>(ceil_div(folds, kThreads)), kThreads, 0, stream>>>(g);
  }
  if (s.R * s.C > 0) codes_kernel<<<static_cast<unsigned>(ceil_div(s.R * s.C, kThreads * 4)), kThreads, 0, stream>>>(g);
  return cudaGetLastError();
}

}  // namespace halftone::device
