#include <algorithm>
#include <iterator>
#include <type_traits>

#include "halftone/quantize/cuda/mxfp4_folded.cuh"
#include "halftone/quantize/cuda/own_block.cuh"

namespace halftone::device {
namespace {

// MXFP4 of both copies of bf16 elements with stochastic rounding, columns rotated, folded into e4m3; or of the transposed copy alone. A
// lane has whole blocks, of its row and of its column, as in blocks_kernel. A thread block has four warps below each other; these take
// pieces of 32 x 32 elements, one after the other, by one loop, while the next two are on their way. The 32 bytes of a block are a sector,
// which a warp stores alone: nobody waits for other warps.
constexpr int kWarps = 4, kThreads = kWarps * 32, kPiece = 32, kOnSm = 6;
using Rule = Stochastic<Float::e2m1>;

// A warp's. Draws of the transposed copy: four words of two columns each a group of eight, a word of 32 rows, where lanes that write four
// rows of all and lanes that read all rows of one meet different banks; then codes of either copy in their place, 32 bytes a vector.
struct WarpShared {
  static constexpr int kWordBytes = 128 + 32, kGroupBytes = 4 * kWordBytes + 32, kCodesPitch = 48;
  static constexpr int kPitch = kPiece * 2 + 16;  // of elements, without conflicts
  alignas(16) uint8_t x[2][32 * kPitch];
  alignas(16) uint8_t draws[4 * kGroupBytes];
};
// A thread block's. Each warp writes all of the last two, the same words: nobody waits for others.
struct Shared {
  WarpShared warps[kWarps];
  RowFlips flips;
  alignas(16) uint32_t steps[2][4];  // StepWords of either copy
};
// What the host knows and the compiler is not to know: it would make shifts of products (multiply_add), and constants anew for each piece.
struct Known {
  uint32_t minus = 0u - (1u << Rule::kShift), sixteen = 16;
  uint32_t zero = 0x80000000u;                          // see widened
  uint32_t around = kOver >> 8 << 24 | (kOver & 255u);  // what positions less draws are taken from: codes count down from 8
  OneScale row, column;
  Known(const MxRule& of_rows, const MxRule& of_columns) : row(PairScale(of_rows)), column(PairScale(of_columns)) {}
};
struct PackedKnown : Known {
  PackedKnown(const MxRule& of_rows, const MxRule& of_columns) : Known(of_rows, of_columns) { around = 0u - (255u << 24 | Rule::kHalf); }
  uint32_t shift = 1u << Rule::kShift, word = 65536, minus_one = ~0u;
};
// Of the packed form: scales of the transposed copy, four warps' a column.
constexpr int kMostPacked = 4;  // pieces of a thread block
struct PackedShared : Shared {
  alignas(4) uint8_t column_scales[kMostPacked * kPiece][kWarps];
};

// Which pieces of 32 columns a thread block has: of kBand tile rows after each other, the first ones many, the last ones few, so that all
// end at about the same time.
struct Schedule {
  uint32_t pieces, inverse;  // of a tile row; 2^32 over it, rounded up
  uint32_t all, ends[2];     // of all bands together, and where those of the first and of the first two sizes end
  uint32_t blocks[2];        // that have the first size, one of the first two; of each tile row of a band
  uint32_t shifts[3];        // logarithms of sizes
  uint32_t stride;           // of eight rows of elements, bytes
};

// What follows from a block's scale and that of its vector's largest block.
struct Folding {
  float factor;
  uint32_t first, second;  // FoldedBlock
  __device__ __forceinline__ Folding(const OneScale& scale, Block<bf16>& t, uint32_t reference_amax, uint32_t reference) {
    const uint32_t byte = scale(largest(t)), below = reference - byte;
    factor = __uint_as_float((254u - byte) << 23) * Rule::kToPosition;
    first = kFirst - below * 0x08080808u, second = kSecond - below * 0x08080808u;
    if (reference > kLargestFactor || below > kDeepest) [[unlikely]]
      exotic(t, byte, reference, reference_amax >= 0x7F80u);
  }

 private:
  __device__ __forceinline__ void exotic(Block<bf16>& t, uint32_t byte, uint32_t reference, bool poison) {
    const FoldedBlock b = folded_block(byte, reference, poison);
    first = b.first, second = b.second;
    // Elements of poisoned blocks are 2, which no draw moves from code 4, whatever they were.
    const uint32_t by = poison ? 0u : b.factor < 0 ? as_word(__float2bfloat162_rn(kLowered)) : 0x3F803F80u;
    const uint32_t keep = poison ? 0u : ~0u, with = poison ? 0x40004000u : 0x80008000u;
    remake(t, keep, by, with);
    factor = poison ? Rule::kToPosition : fabsf(b.factor);
    if (poison) first = second = kPoisonedBytes;
  }
};

// A draw is 16 of the 22 bits that a position has below the quantum: kEven takes a word's lower one from it, kOdd the upper one, by the
// multipliers, which are less busy than the integer units that would place it. What is left is shifted to byte 3 together.
constexpr uint32_t kEven = 256 - (1 << (22 - 16)), kOdd = kEven << 8;
static_assert(Rule::kShift == 24 - 22);
__device__ __forceinline__ uint32_t less_draw(uint32_t position, uint32_t word, uint32_t which) {
  uint32_t r;
  asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(word), "r"(which), "r"(position));
  return r;
}
// Bytes of elements 8 * group to 8 * group + 7. less(i, position): that less the i-th's draw.
template <class Less>
__device__ __forceinline__ void encode8(const Block<bf16>& t, int group, const Folding& f, const Known& k, uint32_t around, Less&& less,
                                        uint32_t* out) {
#pragma unroll
  for (int four = 0; four < 2; ++four) {
    const uint32_t* w = t.w + group * 4 + four * 2;
    uint32_t s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = w[i >> 1];
      const float x = __uint_as_float((i & 1) == 0 ? pair << 16 : pair & 0xFFFF0000u);
      s[i] = multiply_add(less(four * 4 + i, __float_as_uint(__fmul_ru(fabsf(x), f.factor))), k.minus, around);
    }
    const uint32_t selectors = multiply_add(__byte_perm(s[1], s[3], 0x0073), k.sixteen, __byte_perm(s[0], s[2], 0x0073));
    out[four] = select_bytes(f.first, f.second, selectors) | (__byte_perm(w[0], w[1], 0x7531) & 0x80808080u);
  }
}

// The factor that takes a block's elements to their positions, and its scale. Elements of poisoned blocks become 0, without signs.
__device__ __forceinline__ float packed_factor(const OneScale& scale, Block<bf16>& t, uint32_t& byte) {
  const uint32_t amax = largest(t);
  byte = scale(amax);
  float factor = __uint_as_float((254u - byte) << 23) * Rule::kToPosition;
  if (byte > kLargestFactor) [[unlikely]] {
    const bool poison = amax >= 0x7F80u;
    const uint32_t by = poison ? 0u : as_word(__float2bfloat162_rn(kLowered)), keep = poison ? 0u : ~0u, with = poison ? 0u : 0x80008000u;
    remake(t, keep, by, with);
    factor = (poison ? 1.0f : __uint_as_float((254u - (byte - kLoweredBits)) << 23)) * Rule::kToPosition;
    if (poison) byte = 255;
  }
  return factor;
}
// Packed codes of elements 8 * group to 8 * group + 7. kFar: how words hold them, see first_row. less: as in encode8.
template <bool kFar, class Less>
__device__ __forceinline__ uint32_t pack8(const Block<bf16>& t, int group, float factor, const PackedKnown& k, uint32_t around,
                                          Less&& less) {
  const uint32_t* w = t.w + group * 4;
  uint32_t s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = kFar ? w[i & 3] : w[i >> 1];
    const bool lower = kFar ? i < 4 : (i & 1) == 0;
    const float x = __uint_as_float(lower ? pair << 16 : pair & 0xFFFF0000u);
    s[i] = multiply_add(less(i, __float_as_uint(__fmul_ru(fabsf(x), factor))), k.shift, around);
  }
  // Of two codes, whose highest bits are 0, and zeros.
  const auto two = [&](int i) { return permute(s[i], s[i + 2], 0xBB73); };
  const uint32_t low = multiply_add(two(1), k.sixteen, two(0)), high = multiply_add(two(5), k.sixteen, two(4));
  const uint32_t codes = multiply_add(high, k.word, low);
  // Code 8, of elements above the largest, is 7.
  const uint32_t within = multiply_add(codes >> 3 & 0x11111111u, k.minus_one, codes);
  uint32_t even, odd;  // a byte of ones or zeros an element
  if constexpr (kFar) {
    even = permute(w[0], w[2], 0xFBD9), odd = permute(w[1], w[3], 0xFBD9);
  } else {
    const uint32_t first = permute(w[0], w[1], 0x7351), second = permute(w[2], w[3], 0x7351);
    even = permute(first, second, 0xDC98), odd = permute(first, second, 0xFEBA);
  }
  return within | (even & 0x08080808u) | (odd & 0x80808080u);
}
// What lies within the matrix of vector v's 32 codes from element c on.
__device__ __forceinline__ void store_some(const CopyArgs& d, int v, int c, const uint32_t (&w)[4]) {
  if (v >= d.R) return;
  auto* to = reinterpret_cast<uint32_t*>(byte_at(d.packed, v, d.C / 2, c / 2));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (c + 8 * i < d.C) to[i] = w[i];
  }
}

// What codes of vector v fold against, 16 bits.
template <bool kWhole>
__device__ __forceinline__ uint32_t reference_of(const CopyArgs& d, int v) {
  return kWhole || v < d.R ? reinterpret_cast<const uint16_t*>(d.group_amax)[static_cast<uint32_t>(2 * v + 1)] : 0u;
}
__device__ __forceinline__ void write_factor(const CopyArgs& d, int v, uint32_t amax, const OneScale& scale) {
  if (v < d.R) d.fold_scale[v] = amax >= 0x7F80u ? quiet_nan() : fold_scale(Float::e4m3, static_cast<int>(scale(amax)) - 127);
}

// kWhole: thread blocks have nothing beyond the matrix, and all rows of the outputs are aligned. kDeviceStep: steps may lie in device
// memory.
//
// kPacked: packed codes and scales instead, without an earlier pass. The 16 bytes of a block are half a sector: rows of two pieces are
// stored together, columns not, where the second half follows from another warp.
//
// kRow: the row copy, too, which the packed form always makes.
template <bool kPacked, bool kRow, bool kWhole, bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm)
    mxfp4_rotated_kernel(const __grid_constant__ TileArgs a, const __grid_constant__ std::conditional_t<kPacked, PackedKnown, Known> k,
                         const __grid_constant__ Schedule schedule) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const uint32_t block = blockIdx.x / kBand;
  const int size = block < schedule.blocks[0] ? 0 : block < schedule.blocks[1] ? 1 : 2;
  const int count = 1 << schedule.shifts[size];
  uint32_t first = size == 0 ? 0 : schedule.ends[size - 1];
  first += (size == 0 ? block : block - schedule.blocks[size - 1]) << schedule.shifts[size];
  if (a.backwards) first = schedule.all - first - static_cast<uint32_t>(count);
  const uint32_t band = __umulhi(first, schedule.inverse);
  const int tile_r = static_cast<int>(band * kBand + blockIdx.x % kBand);
  if (tile_r >= a.tiles_r) return;
  const int row0 = tile_r * kTile + warp * 32, left = static_cast<int>(first - band * schedule.pieces) * kPiece;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  WarpShared& own = shared.warps[warp];

  if constexpr (kPacked) wait_for_primary();
  start_dependents();
  int column0 = left;
  const auto* source = static_cast<const uint8_t*>(a.x) + (int64_t{row0 + (lane >> 2)} * a.ld + left + (lane & 3) * 8) * 2;
  uint32_t x = address_of(own.x, 0);
  const uint32_t both_x = 2 * x + static_cast<uint32_t>(sizeof(own.x[0])),
                 in_piece = static_cast<uint32_t>((lane >> 2) * WarpShared::kPitch + (lane & 3) * 16);
  // A piece, the next one.
  const auto load = [&](uint32_t to, int number) {
    const uint32_t stride = schedule.stride;
    if (number < count) {
      const uint32_t address = to + in_piece;
      if (kWhole || (row0 + 32 <= a.rows && left + (number + 1) * kPiece <= a.cols)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async(address + i * 8 * WarpShared::kPitch, source + uint64_t{stride} * static_cast<uint32_t>(i));
      } else {
        const int valid = left + number * kPiece + (lane & 3) * 8 < a.cols ? a.rows - row0 - (lane >> 2) : 0;
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          const uint4 w = i * 8 < valid ? load_once(source + uint64_t{stride} * static_cast<uint32_t>(i)) : uint4{};
          store16<0>(address + static_cast<uint32_t>(i * 8 * WarpShared::kPitch), w.x, w.y, w.z, w.w);
        }
      }
      source += kPiece * 2;
    }
    end_copy_group();
  };
  load(x, 0), load(both_x - x, 1);
  const Draws &row_draws = a.row.draws, &column_draws = a.transposed.draws;
  if constexpr (kDeviceStep) {
    if constexpr (kRow) {
      const StepWords r = step_words(row_draws);
      *reinterpret_cast<uint4*>(shared.steps[0]) = {r.lo1, r.hi1, r.hi2, 0};
    }
    const StepWords c = step_words(column_draws);
    *reinterpret_cast<uint4*>(shared.steps[1]) = {c.lo1, c.hi1, c.hi2, 0};
    shared.flips.fill(a.transposed, 32, lane, kFlipBits);
  } else {
    reinterpret_cast<uint32_t*>(shared.flips.words)[lane] = a.transposed.signs >> lane << 31 | kFlipBits;
    __syncwarp();
  }
  const uint32_t base = address_of(&shared, 0);
  constexpr int kAtSteps = offsetof(Shared, steps), kAtFlips = offsetof(Shared, flips);
  const auto step_of = [&]<int kCopy>(const Draws& d) {
    if constexpr (!kDeviceStep) return host_step_words(d);
    uint32_t w[4];
    load16<kAtSteps + kCopy * 16>(base, w);
    return StepWords{w[0], w[1], w[2]};
  };
  uint32_t row_group = row_draws.first + static_cast<uint32_t>(row0 + lane) * row_draws.row + static_cast<uint32_t>(left / 8);
  uint32_t column_group =
      column_draws.first + static_cast<uint32_t>(row0 + (lane >> 2) * 4) * column_draws.row + static_cast<uint32_t>(left / 8 + (lane & 3));
  const uint32_t made = address_of(own.draws + (lane & 3) * WarpShared::kGroupBytes + (lane >> 2) * 16, lane);
  const uint32_t wanted = address_of(own.draws + (lane >> 3) * WarpShared::kGroupBytes + (lane >> 1 & 3) * WarpShared::kWordBytes, lane);
  uint32_t codes = 0, stored;
  if constexpr (!kPacked) {
    codes = address_of(own.draws + lane * WarpShared::kCodesPitch, lane);
    stored = address_of(own.draws + (lane >> 1) * WarpShared::kCodesPitch + (lane & 1) * 16, lane);
  } else {
    // Codes of a row lie beside its elements, of odd pieces beside those of the other buffer.
    stored = address_of(own.x[lane & 1] + (lane >> 1) * WarpShared::kPitch + kPiece * 2, lane);
  }
  const uint32_t in_word = __shfl_sync(0xFFFFFFFFu, (lane & 1) == 0 ? kEven : kOdd, lane),
                 around = __shfl_sync(0xFFFFFFFFu, k.around, lane);
  const uint32_t two_lanes = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(lane * 2), lane);
  const OneScale of_rows = k.row, of_columns = k.column;
  uint8_t *row_to, *column_to;
  if constexpr (!kPacked) {
    if constexpr (kRow) row_to = byte_at(a.row.values, row0 + (lane >> 1), a.row.C, left + (lane & 1) * 16);
    column_to = byte_at(a.transposed.values, left + (lane >> 1), a.transposed.C, row0 + (lane & 1) * 16);
  } else {
    row_to = byte_at(a.row.packed, row0 + (lane >> 1), a.row.C / 2, left / 2 + (lane & 1) * 16);
    column_to = byte_at(a.transposed.packed, left + lane, a.transposed.C / 2, row0 / 2);
  }
  uint32_t scales_at = 0, row_scales = 0;  // the lane's column's scale; scales of its row, the last one highest
  if constexpr (kPacked) scales_at = address_of(&reinterpret_cast<PackedShared*>(memory)->column_scales[lane][warp], lane);
  // Of 32 vectors, 32 bytes each.
  const auto flush = [&](uint8_t* to, const CopyArgs& d, int v0, int at) {
    __syncwarp();
    if constexpr (kWhole) {
      uint32_t w[8];
      load16<0>(stored, w), load16<16 * WarpShared::kCodesPitch>(stored, w + 4);
      store4(to, w), store4(to + uint64_t{static_cast<uint32_t>(d.C)} * 16, w + 4);
    } else {
      flush_pieces<8, 32, 32, 32>(static_cast<uint8_t*>(d.values), d, v0, at, lane,
                                  [&](int r, int piece) { return own.draws + r * WarpShared::kCodesPitch + piece; });
    }
  };

  uint32_t row_reference = 0, row_byte = 0, column_reference = 0;
  if constexpr (kPacked) write_outer(a, row0 + lane, left);
  // What the pass before found. It ends on different multiprocessors at different times; draws and rotation of a first piece need not wait.
  const auto take_references = [&] {
    wait_for_primary();
    if constexpr (kRow) row_reference = reference_of<kWhole>(a.row, row0 + lane), row_byte = of_rows(row_reference);
    column_reference = reference_of<kWhole>(a.transposed, left + lane);
  };
  uint32_t next_reference = static_cast<uint32_t>(2 * (left + kPiece + lane) + 1);  // of group_amax, in words of 16 bits

#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    {
      // They follow from positions alone: while the elements come.
      uint32_t v[4][4];
      draw8<4>(column_draws, step_of.template operator()<1>(column_draws), column_group, column_draws.row, v);
      __syncwarp();
      constexpr int kWord = WarpShared::kWordBytes;
      store16<0>(made, v[0][0], v[1][0], v[2][0], v[3][0]), store16<kWord>(made, v[0][1], v[1][1], v[2][1], v[3][1]);
      store16<2 * kWord>(made, v[0][2], v[1][2], v[2][2], v[3][2]), store16<3 * kWord>(made, v[0][3], v[1][3], v[2][3], v[3][3]);
    }
    wait_for_copy_groups<1>();
    __syncwarp();
    const uint32_t from = x + two_lanes;
    uint32_t out[kPacked ? 4 : 8];
    [[maybe_unused]] const auto store_codes = [&](const uint32_t(&w)[8]) {
      store16<0>(codes, w[0], w[1], w[2], w[3]), store16<16>(codes, w[4], w[5], w[6], w[7]);
    };
    {
      Block<bf16> t;
      {
        float v[32];
        const auto four_rows = [&]<int kRow>() {
          uint32_t flips[4];
          load16<kAtFlips + kRow * 4>(base, flips);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint16_t w;
            asm volatile("ld.shared.u16 %0, [%1];"
                         : "=h"(w)
                         : "r"(from + static_cast<uint32_t>((kRow + i) * WarpShared::kPitch))
                         : "memory");
            v[kRow + i] = widened<0>(w, flips[i], k.zero);
          }
        };
        [&]<int... kI>(std::integer_sequence<int, kI...>) { (four_rows.template operator()<kI * 4>(), ...); }
        (std::make_integer_sequence<int, 8>{});
        if constexpr (!kRow) {
          __syncwarp();
          load(x, number + 2);
        }
        rotate_rows<kPacked>(v, t);
      }
      const auto eights = [&](auto&& encode) {
        const auto eight = [&]<int kGroup>() {
          uint32_t words[8];
          load16<kGroup * 32>(wanted, words), load16<kGroup * 32 + 16>(wanted, words + 4);
          encode(kGroup, [&](int i, uint32_t position) { return less_draw(position, words[i], in_word); });
        };
        eight.template operator()<0>(), eight.template operator()<1>(), eight.template operator()<2>(), eight.template operator()<3>();
      };
      if constexpr (!kPacked) {
        if (number == 0) take_references();
        const Folding f(of_columns, t, column_reference, of_columns(column_reference));
        eights([&](int group, auto&& less) { encode8(t, group, f, k, around, less, out + group * 2); });
        __syncwarp();
        store_codes(out);
        flush(column_to, a.transposed, column0, row0);
        column_to += uint64_t{static_cast<uint32_t>(a.transposed.C)} * kPiece;
      } else {
        uint32_t byte;
        const float factor = packed_factor(of_columns, t, byte);
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(scales_at), "r"(byte) : "memory");
        scales_at += kPiece * kWarps;
        eights([&](int group, auto&& less) { out[group] = pack8<true>(t, group, factor, k, around, less); });
        if constexpr (!kWhole) {
          store_some(a.transposed, column0 + lane, row0, out);
        } else {
          store4(column_to, out);
          column_to += uint64_t{static_cast<uint32_t>(a.transposed.C)} * (kPiece / 2);
        }
      }
    }
    if (!kPacked && number + 1 < count) {
      column_reference = kWhole || next_reference < static_cast<uint32_t>(2 * a.transposed.R)
                             ? reinterpret_cast<const uint16_t*>(a.transposed.group_amax)[next_reference]
                             : 0u;
      next_reference += 2 * kPiece;
    }
    if constexpr (kRow) {
      Block<bf16> t;
      const uint32_t of_row = from + two_lanes * (WarpShared::kPitch / 2 - 1);
      load16<0>(of_row, t.w), load16<16>(of_row, t.w + 4), load16<32>(of_row, t.w + 8), load16<48>(of_row, t.w + 12);
      __syncwarp();
      load(x, number + 2);
      const auto eights = [&](auto&& encode) {
        uint32_t v[4][4];
        draw8<4>(row_draws, step_of.template operator()<0>(row_draws), row_group, 1, v);
#pragma unroll
        for (int group = 0; group < 4; ++group)
          encode(group, [&](int i, uint32_t position) { return less_draw(position, v[group][i >> 1], i % 2 == 0 ? kEven : kOdd); });
      };
      if constexpr (!kPacked) {
        const Folding f(of_rows, t, row_reference, row_byte);
        eights([&](int group, auto&& less) { encode8(t, group, f, k, around, less, out + group * 2); });
        store_codes(out);
        flush(row_to, a.row, row0, column0);
        row_to += kPiece;
      } else {
        uint32_t byte;
        const float factor = packed_factor(of_rows, t, byte);
        row_scales = __funnelshift_r(row_scales, byte, 8);
        eights([&](int group, auto&& less) { out[group] = pack8<false>(t, group, factor, k, around, less); });
        if constexpr (!kWhole) {
          store_some(a.row, row0 + lane, column0, out);
        } else {
          store16<kPiece * 2>(of_row, out[0], out[1], out[2], out[3]);
          if ((number & 1) != 0) {
            __syncwarp();
            uint32_t w[8];
            load16<0>(stored, w), load16<16 * WarpShared::kPitch>(stored, w + 4);
            store4(row_to, w), store4(row_to + uint64_t{static_cast<uint32_t>(a.row.C)} * 8, w + 4);
            row_to += kPiece;
          }
        }
      }
    }
    row_group += kPiece / 8, column_group += kPiece / 8, column0 += kPiece, x = both_x - x;
  }
  if constexpr (!kPacked) {
    write_outer(a, row0 + lane, left);
    if (kRow && left == 0) write_factor(a.row, row0 + lane, row_reference, of_rows);
    if (row0 == 0) {
#pragma unroll 1
      for (int c = left + lane; c < left + count * kPiece; c += kPiece)
        write_factor(a.transposed, c, reference_of<false>(a.transposed, c), of_columns);
    }
  } else {
    if (count == 4) {
      store_scales<uint32_t, kWhole>(a.row, reinterpret_cast<const uint8_t*>(&row_scales), row0 + lane, left);
    } else {
      const auto two = static_cast<uint16_t>(row_scales >> 16);
      store_scales<uint16_t, kWhole>(a.row, reinterpret_cast<const uint8_t*>(&two), row0 + lane, left);
    }
    __syncthreads();
    if (thread < count * kPiece) {
      const auto& scales = reinterpret_cast<const PackedShared*>(memory)->column_scales;
      store_scales<uint32_t, kWhole>(a.transposed, scales[thread], left + thread, tile_r * kTile);
    }
  }
}

// How the pieces of all tiles are shared out: by sizes (their logarithms), the second and the third for as many pieces of a band.
Schedule share_out(const TileArgs& a, TileGrid tiles, const uint32_t (&sizes)[3], uint32_t second, uint32_t third) {
  Schedule s{};
  s.stride = static_cast<uint32_t>(a.ld * 16);
  s.pieces = tiles.columns * (kTile / kPiece);
  s.inverse = static_cast<uint32_t>(((uint64_t{1} << 32) + s.pieces - 1) / s.pieces);
  s.all = s.pieces * ((tiles.rows + kBand - 1) / kBand);
  const auto whole = [](uint32_t pieces, uint32_t size) { return pieces >> size << size; };
  std::copy(std::begin(sizes), std::end(sizes), s.shifts);
  s.ends[0] = whole(s.all - std::min(s.all, second + third), sizes[0]);
  s.ends[1] = s.ends[0] + whole(s.all - s.ends[0] - std::min(s.all - s.ends[0], third), sizes[1]);
  s.blocks[0] = s.ends[0] >> sizes[0];
  s.blocks[1] = s.blocks[0] + ((s.ends[1] - s.ends[0]) >> sizes[1]);
  return s;
}
// Many pieces at once spare a thread block its beginning, some 300 instructions a warp; few at the end have all end at about the same time.
Schedule share_out_folded(const TileArgs& a, TileGrid tiles) {
  if (tiles.columns % 2 == 0 && int64_t{tiles.columns} * tiles.rows >= 8192) return share_out(a, tiles, {3, 2, 1}, 200, 100);
  return share_out(a, tiles, {2, 1, 0}, 64, 64);
}
// Whose scales of rows are stored for four or for two pieces.
Schedule share_out_packed(const TileArgs& a, TileGrid tiles) { return share_out(a, tiles, {2, 1, 1}, 0, 100); }
// A thread block for each of the pieces that go together and each tile row of a band.
dim3 grid_of(const Schedule& s) { return dim3((s.blocks[1] + ((s.all - s.ends[1]) >> s.shifts[2])) * kBand); }
// Whether Schedule::inverse divides exactly.
bool divides(TileGrid tiles) {
  const uint64_t pieces = uint64_t{tiles.columns} * (kTile / kPiece);
  return pieces * pieces * ((tiles.rows + kBand - 1) / kBand) >> 32 == 0;
}
bool folds(const CopyArgs& d, int hadamard) {
  return d.form == ValueForm::fold_e4m3 && !d.tile && d.hadamard == hadamard && d.scales == nullptr && d.group_amax != nullptr;
}
bool whole_folded(const CopyArgs& d, int C) { return d.C == C && reinterpret_cast<uintptr_t>(d.values) % 16 == 0; }

// whole: of all vectors, see the kernel.
template <bool kPacked, bool kRow>
bool launch(const TileArgs& a, const Schedule& schedule, bool whole, cudaStream_t stream) {
  whole = whole && a.rows % kTile == 0 && a.cols % kTile == 0;
  const bool device_step = a.row.draws.step != nullptr || a.transposed.draws.step != nullptr || a.transposed.signs_step != nullptr;
  const auto kernel = !whole        ? mxfp4_rotated_kernel<kPacked, kRow, false, true>
                      : device_step ? mxfp4_rotated_kernel<kPacked, kRow, true, true>
                                    : mxfp4_rotated_kernel<kPacked, kRow, true, false>;
  const std::conditional_t<kPacked, PackedKnown, Known> known(a.row.mx, a.transposed.mx);
  constexpr int kBytes = sizeof(std::conditional_t<kPacked, PackedShared, Shared>);
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  return launch_pair(kernel, grid_of(schedule), kThreads, kBytes, stream, a, known, schedule);
}

}  // namespace

bool launch_mxfp4_rotated(const TileArgs& a, Copies copies, TileGrid tiles, cudaStream_t stream) {
  if (copies == Copies::row || !folds(a.transposed, 32) || !divides(tiles)) return false;
  const Schedule schedule = share_out_folded(a, tiles);
  const bool whole = whole_folded(a.transposed, a.rows);
  if (copies == Copies::transposed) return launch<false, false>(a, schedule, whole, stream);
  return folds(a.row, 0) && launch<false, true>(a, schedule, whole && whole_folded(a.row, a.cols), stream);
}

bool launch_mxfp4_rotated_packed(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (!packs_blocks(a.row, 0) || !packs_blocks(a.transposed, 32) || !divides(tiles)) return false;
  return launch<true, true>(a, share_out_packed(a, tiles), whole_packed(a.row, a.cols, 4) && whole_packed(a.transposed, a.rows, 4), stream);
}

}  // namespace halftone::device
