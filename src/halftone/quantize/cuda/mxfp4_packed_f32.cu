#include "halftone/quantize/cuda/pair.cuh"

namespace halftone::device {
namespace {

// Packed MXFP4 codes of both copies of fp32 elements with stochastic rounding. A lane has whole blocks, of its row and of its column, as in
// blocks_kernel, but what is general there is not asked for here, and maxima and signs take fewer instructions: kernels with draws issue
// one in some 70% of the cycles, whatever it is. A thread block has four warps, 128 x 64 elements, a warp 32 x 64 of them in two halves, in
// a loop: one after the other, twice the code, they take 8% longer.
constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = 64, kOnSm = 6, kHalf = 32;

// A warp's. Draws of the transposed copy: four words of two columns each a group of eight, a word of 32 rows, where lanes that write four
// rows of all and lanes that read all rows of one meet different banks.
struct WarpShared {
  static constexpr int kWordBytes = 128 + 32, kGroupBytes = 4 * kWordBytes + 32;
  alignas(32) uint8_t x[32 * kWidePitch];  // 128 bytes of elements a row, then its codes, 16 bytes a half
  alignas(16) uint8_t draws[4 * kGroupBytes];
  alignas(16) uint8_t columns[kColumns][16];  // codes of the transposed copy
  uint8_t pad[32];                            // warps in different banks
};
struct PackedShared {
  WarpShared warps[kWarps];
  RowFlips flips;
  alignas(16) uint32_t steps[2][4];  // StepWords of either copy
  alignas(4) uint8_t row_scales[kTile][kColumns / 32], column_scales[kColumns][kWarps];
};

// A block, and the upper halves of its elements: of 8g and 8g + 2, 8g + 4 and 8g + 6, then of the odd ones.
struct Elements {
  Block<float> t;
  uint32_t upper[16];
  __device__ __forceinline__ void pair() {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int first = i / 4 * 8 + i % 2 * 4 + i % 4 / 2;
      upper[i] = permute(__float_as_uint(t.v[first]), __float_as_uint(t.v[first + 2]), 0x7632);
    }
  }
  // Upper half of the largest magnitude, which says what byte the scale has (takes).
  __device__ __forceinline__ uint32_t amax() const {
    uint32_t plus = 0, minus = 0;  // the largest without a sign, and with one
#pragma unroll
    for (int i = 0; i < 16; i += 2)
      plus = __vimax3_s16x2(plus, upper[i], upper[i + 1]), minus = __vimax3_u16x2(minus, upper[i], upper[i + 1]);
    const uint32_t m = __vmaxu2(plus, minus & 0x7FFF7FFFu);
    return max(m << 16, m & 0xFFFF0000u);
  }
  __device__ __forceinline__ void clear() {
    device::clear(t);
#pragma unroll
    for (uint32_t& w : upper) asm volatile("mov.b32 %0, 0;" : "=r"(w));
  }
};

using Rule = Stochastic<Float::e2m1>;

// 4, 16 and 65536 in registers, unknown to the compiler: see multiply_add.
struct Multipliers {
  uint32_t shift = blockDim.x / (kThreads >> Rule::kShift), digit = blockDim.x / (kThreads / 16), word = blockDim.x * (65536 / kThreads);
};

// mx_byte of what takes() lets through, and the factor that takes elements to their positions: as BlockRule::make.
__device__ __forceinline__ float position_factor(const CopyArgs& d, Elements& e, uint32_t& byte) {
  const uint32_t amax = e.amax();
  byte = static_cast<uint32_t>(max(static_cast<int>((amax + d.mx.add) >> 23) - d.mx.below, d.mx.lowest));
  byte = poisoned(amax) ? 255u : byte;
  const bool apart = d.fixed_clip || byte > kLargestFactor;
  if (apart) {
    const float by = d.fixed_clip ? 0.75f * mx_inverse_of(byte) : mx_inverse_of(byte);
#pragma unroll
    for (float& v : e.t.v) asm volatile("mul.f32 %0, %0, %1;" : "+f"(v) : "f"(by));
    if (byte == 255) e.clear();
  }
  return (apart ? 1.0f : __uint_as_float((254u - byte) << 23)) * Rule::kToPosition;
}

// Codes of elements 8 * group to 8 * group + 7. below(i): place_draw of the i-th.
template <class Below>
__device__ __forceinline__ uint32_t encode8(const Elements& e, int group, float factor, const Multipliers& m, Below&& below) {
  uint32_t s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i] = multiply_add(__float_as_uint(__fmul_ru(fabsf(e.t.v[8 * group + i]), factor)), m.shift, 0u - below(i));
  // Of two codes, whose highest bits are 0, and zeros.
  const auto two = [&](int i) { return permute(s[i], s[i + 2], 0xBB73); };
  const uint32_t low = multiply_add(two(1), m.digit, two(0)), high = multiply_add(two(5), m.digit, two(4));
  const uint32_t codes = multiply_add(high, m.word, low);
  const uint32_t within = codes - ((codes & 0x88888888u) >> 3);  // code 8, of elements above the largest, is 7
  const auto signs = [&](int i) { return permute(e.upper[4 * group + i], e.upper[4 * group + i + 1], 0xFDB9); };
  return within | (signs(0) & 0x08080808u) | (signs(2) & 0x80808080u);
}

__device__ __forceinline__ void copy16(uint8_t* to, const uint8_t* from) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
// kWhole: thread blocks have nothing beyond the matrix, and all rows of the outputs are aligned. kDeviceStep: steps may lie in device
// memory.
template <bool kRotated, bool kWhole, bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm) mxfp4_packed_f32_kernel(const __grid_constant__ TileArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  PackedShared& shared = *reinterpret_cast<PackedShared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int tile_r = static_cast<int>(blockIdx.z) * kBand + static_cast<int>(blockIdx.x);
  if (tile_r >= a.tiles_r) return;
  const int top = tile_r * kTile, row0 = top + warp * 32, left = static_cast<int>(blockIdx.y) * kColumns;
  WarpShared& own = shared.warps[warp];

  wait_for_primary();
  start_dependents();
  const auto* source = static_cast<const float*>(a.x) + int64_t{row0 + (lane >> 3)} * a.ld + left + (lane & 7) * 4;
  const auto load = [&](int half) {
    uint8_t* to = own.x + (lane >> 3) * kWidePitch + (lane & 7) * 16;
    const auto* from = reinterpret_cast<const uint8_t*>(source + half * kHalf);
    const auto stride = static_cast<uint32_t>(a.ld * 16);
    if (kWhole || (row0 + 32 <= a.rows && left + kColumns <= a.cols)) {
      const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
      for (int i = 0; i < 8; ++i) copy_async(address + i * 4 * kWidePitch, from + uint64_t{stride} * static_cast<uint32_t>(i));
      return;
    }
    const int valid = left + half * kHalf + (lane & 7) * 4 < a.cols ? a.rows - row0 - (lane >> 3) : 0;
#pragma unroll 1
    for (int i = 0; i < 8; ++i)
      *reinterpret_cast<uint4*>(to + i * 4 * kWidePitch) =
          i * 4 < valid ? load_once(from + uint64_t{stride} * static_cast<uint32_t>(i)) : uint4{};
  };
  load(0);
  const Draws &row_draws = a.row.draws, &column_draws = a.transposed.draws;
  // What a warp wants of these, all warps write.
  if constexpr (kRotated) shared.flips.fill(a.transposed, 32, lane, kFlipBits);
  if constexpr (kDeviceStep) {
    const StepWords r = step_words(row_draws), c = step_words(column_draws);
    *reinterpret_cast<uint4*>(shared.steps[0]) = {r.lo1, r.hi1, r.hi2, 0};
    *reinterpret_cast<uint4*>(shared.steps[1]) = {c.lo1, c.hi1, c.hi2, 0};
    __syncwarp();
  }
  const auto step_of = [&](int copy, const Draws& d) {
    if constexpr (!kDeviceStep) return host_step_words(d);
    uint32_t w[4];
    load_shared(reinterpret_cast<const uint8_t*>(shared.steps[copy]), w);
    return StepWords{w[0], w[1], w[2]};
  };
  write_outer(a, row0 + lane, left);

  uint32_t row_group = row_draws.first + static_cast<uint32_t>(row0 + lane) * row_draws.row + static_cast<uint32_t>(left / 8);
  uint32_t column_group =
      column_draws.first + static_cast<uint32_t>(row0 + (lane >> 2) * 4) * column_draws.row + static_cast<uint32_t>(left / 8 + (lane & 3));
  uint8_t* made = own.draws + (lane & 3) * WarpShared::kGroupBytes + (lane >> 2) * 16;
  const uint8_t* wanted = own.draws + (lane >> 3) * WarpShared::kGroupBytes + (lane >> 1 & 3) * WarpShared::kWordBytes;
  const uint32_t in_word = (lane & 1) == 0 ? 0x5104 : 0x5324;  // place_draw
  const Multipliers m;

#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    {
      // They follow from positions alone: while the elements come.
      uint32_t v[4][4];
      draw8<4>(column_draws, step_of(1, column_draws), column_group, column_draws.row, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) *reinterpret_cast<uint4*>(made + i * WarpShared::kWordBytes) = {v[0][i], v[1][i], v[2][i], v[3][i]};
    }
    wait_for_copies();
    __syncwarp();
    {
      Block<float> column[1];
      load_columns<kWidePitch>(own.x + lane * 4, column);
      if constexpr (kRotated) rotate_columns(column, shared.flips.words);
      Elements e{column[0]};
      e.pair();
      uint32_t byte, out[4];
      const float factor = position_factor(a.transposed, e, byte);
      shared.column_scales[half * kHalf + lane][warp] = static_cast<uint8_t>(byte);
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        uint32_t words[8];
        read_words(wanted + group * 32, words), read_words(wanted + group * 32 + 16, words + 4);
        out[group] = encode8(e, group, factor, m, [&](int i) { return __byte_perm(words[i], Rule::kPlace, in_word); });
      }
      store4(own.columns[half * kHalf + lane], out);
    }
    __syncwarp();
    Elements e;
    load_row<kWidePitch>(own.x + lane * kWidePitch, lane, 0, e.t);
    __syncwarp();
    if (half == 0) load(1);
    e.pair();
    uint32_t byte, out[4];
    const float factor = position_factor(a.row, e, byte);
    shared.row_scales[warp * 32 + lane][half] = static_cast<uint8_t>(byte);
    uint32_t v[4][4];
    draw8<4>(row_draws, step_of(0, row_draws), row_group, 1, v);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      out[group] = encode8(e, group, factor, m, [&](int i) {
        return i % 2 == 0 ? place_draw<0>(v[group][i >> 1], Rule::kPlace) : place_draw<1>(v[group][i >> 1], Rule::kPlace);
      });
    }
    store4(own.x + lane * kWidePitch + 128 + half * 16, out);
    row_group += kHalf / 8, column_group += kHalf / 8;
  }

  __syncwarp();
  const CopyArgs& d = a.transposed;
  if constexpr (kWhole) {
    const int r = lane >> 1, at = (lane & 1) * 16;
    uint8_t* to = byte_at(a.row.packed, row0 + r, a.row.C / 2, left / 2 + at);
    const uint8_t* from = own.x + r * kWidePitch + 128 + at;
    copy16(to, from), copy16(to + uint64_t{static_cast<uint32_t>(a.row.C)} * 8, from + 16 * kWidePitch);
  } else {
    flush_pieces<4, 32, kColumns, 32>(a.row.packed, a.row, row0, left, lane,
                                      [&](int r, int at) { return own.x + r * kWidePitch + 128 + at; });
  }
  __syncthreads();
  store_scales<uint16_t, kWhole>(a.row, shared.row_scales[thread], top + thread, left);
  if (thread < kColumns) store_scales<uint32_t, kWhole>(d, shared.column_scales[thread], left + thread, top);
  if constexpr (kWhole) {
    const int v = thread >> 2, of = thread & 3;
    uint8_t* to = byte_at(d.packed, left + v, d.C / 2, top / 2 + of * 16);
    copy16(to, shared.warps[of].columns[v]);
    copy16(to + uint64_t{static_cast<uint32_t>(d.C)} * 16, shared.warps[of].columns[v + 32]);
  } else {
    flush_pieces<4, kColumns, kTile, kThreads>(d.packed, d, left, top, thread,
                                               [&](int v, int at) { return shared.warps[at >> 4].columns[v]; });
  }
}

// The upper half of the largest magnitude says what byte the scale has, and no finite one leads beyond 254.
bool takes(const CopyArgs& d) {
  return !d.tile && d.mx.by == 1 && d.mx.add % 65536 == 0 && d.mx.smallest == 0 && d.mx.below > 0 && d.scale_tiles == nullptr;
}

}  // namespace

bool launch_mxfp4_packed_f32(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (!takes(a.row) || !takes(a.transposed) || a.transposed.hadamard == 16) return false;
  dim3 grid = band_grid(tiles);
  grid.y *= kTile / kColumns;
  if (grid.y > 65535) return false;
  const bool all = a.rows % kTile == 0 && a.cols % kTile == 0 && whole_packed(a.row, a.cols, 2) && whole_packed(a.transposed, a.rows, 4);
  const bool device_step = a.row.draws.step != nullptr || a.transposed.draws.step != nullptr;
  const auto kernel = [&]<bool kRotated>() {
    if (!all) return mxfp4_packed_f32_kernel<kRotated, false, true>;
    return device_step ? mxfp4_packed_f32_kernel<kRotated, true, true> : mxfp4_packed_f32_kernel<kRotated, true, false>;
  };
  constexpr int kBytes = sizeof(PackedShared);
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  return launch_pair(a.transposed.hadamard == 32 ? kernel.template operator()<true>() : kernel.template operator()<false>(), grid, kThreads,
                     kBytes, stream, a);
}

}  // namespace halftone::device
