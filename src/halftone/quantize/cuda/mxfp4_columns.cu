#include "halftone/quantize/cuda/own_block.cuh"

namespace halftone::device {
namespace {

// Packed MXFP4 of the transposed copy alone of bf16 elements with stochastic rounding, columns rotated. A lane has the 32 rows of two
// neighbouring columns, as in blocks_kernel. A thread block has kWarps warps beside each other, each of which takes pieces of 32 x 64
// elements, one below the other, by one loop, while the next one is on its way. Two pieces make 32 bytes of each column, which a warp
// stores alone, and four the word of its scales: nobody waits for other warps, and no second kernel arranges scales. So a thread block is
// one warp, in whose place the next comes as soon as it has ended.
constexpr int kWarps = 1, kThreads = kWarps * 32, kPiece = 32, kColumns = 64, kOnSm = 20;
using Rule = Stochastic<Float::e2m1>;

// A warp's: elements; draws of 16 rows, a word of two columns; codes, 32 bytes a column, see code_at.
struct WarpShared {
  static constexpr int kWordBytes = 64 + 16, kPitch = 128;
  alignas(128) uint8_t x[32 * kPitch];
  alignas(32) uint8_t codes[64 * 32];
  alignas(16) uint8_t draws[32 * kWordBytes];
  RowFlips flips;
  alignas(16) uint32_t steps[4];  // StepWords
  // Of column v, from byte `at` on: lanes that write columns 2 and 4 apart meet different banks.
  static __device__ __forceinline__ int code_at(int v, int at) { return v * 32 + (at ^ (v >> 2 & 1) * 16); }
};
// What goes around a draw: half a step less what makes the difference round up instead of down below it, and 15 above, so that byte 3 is
// 15 less the code.
constexpr uint32_t kAround = 15u << 8 | (Rule::kHalf - 1);
// What the host knows and the compiler is not to know: it would make shifts of products (multiply_add), and constants anew for each piece.
struct Known {
  uint32_t minus = 0u - (1u << Rule::kShift), digit = 16, word = 65536;
  uint32_t zero = 0x80000000u;  // see widened
  uint32_t around = kAround;
  OneScale scale;
  explicit Known(const MxRule& r) : scale(PairScale(r)) {}
};

// Word `lane` of each of four rows of 128 bytes, one after the other; from: address of the lane's 16 bytes of them.
template <int kAt>
__device__ __forceinline__ void load_rows(uint32_t from, uint32_t* w) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4+%5];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from), "n"(kAt)
               : "memory");
}

// The first of the rows 8 * (word / 4) to 8 * (word / 4) + 7 that a word holds; the other is two below it. So signs of four codes lie in
// two words.
__device__ constexpr int row_of(int word) { return word / 4 * 8 + word % 2 * 4 + word % 4 / 2; }

// The factors that take elements of two columns to their positions. Elements of large blocks are taken times kLowered first, those of
// poisoned ones are 0. By whole warps, which take the branch together: a vote is less than what waits for the lanes to meet again.
__device__ __forceinline__ void position_factors(const OneScale& scale, Block<bf16> (&t)[2], uint32_t (&byte)[2], float (&factor)[2]) {
  uint32_t of[2], amax[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) amax[j] = largest(t[j]), of[j] = byte[j] = scale(amax[j]);
  if (__any_sync(0xFFFFFFFFu, max(byte[0], byte[1]) > kLargestFactor)) [[unlikely]] {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool large = byte[j] > kLargestFactor, poison = amax[j] >= 0x7F80u;
      const uint32_t keep = poison ? 0u : ~0u, by = as_word(__float2bfloat162_rn(large ? kLowered : 1.0f));
      remake(t[j], keep, by, 0x80008000u);
      of[j] = poison ? 127u : large ? byte[j] - kLoweredBits : byte[j];
      byte[j] = poison ? 255u : byte[j];
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) factor[j] = __uint_as_float((254u - of[j]) << 23) * Rule::kToPosition;
}

// Codes of rows 8 * group to 8 * group + 7. over(i): the i-th's draw with what goes around it.
template <class Over>
__device__ __forceinline__ uint32_t encode8(const Block<bf16>& t, int group, float factor, const Known& k, Over&& over) {
  const uint32_t* w = t.w + group * 4;
  uint32_t s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // The lower one by the multipliers, the upper one by the integer units, which now and then have less to do.
    const uint32_t pair = w[i % 2 * 2 + i / 4];
    const uint32_t wide = (i & 2) == 0 ? multiply_add(pair, k.word, 0u) : pair & 0xFFFF0000u;
    const float x = __uint_as_float(wide);
    s[i] = multiply_add(__float_as_uint(__fmul_ru(fabsf(x), factor)), k.minus, over(i));
  }
  // Of two bytes, whose highest bits are 0, and zeros.
  const auto two = [&](int i) { return permute(s[i], s[i + 2], 0xBB73); };
  const uint32_t low = multiply_add(two(1), k.digit, two(0)), high = multiply_add(two(5), k.digit, two(4));
  const uint32_t down = multiply_add(high, k.word, low);
  // Code 8, of elements above the largest, left 7, and 8 is 15 less 7.
  const uint32_t within = down + ((~down & 0x88888888u) >> 3);
  return ~within | (permute(w[0], w[1], 0xFDB9) & 0x08080808u) | (permute(w[2], w[3], 0xFDB9) & 0x80808080u);
}

// kWhole: thread blocks have nothing beyond the matrix, and all rows of the outputs are aligned. kDeviceStep: steps may lie in device
// memory. pieces: of 32 rows, in all; at_once: of a warp, one after the other, an even number.
template <bool kWhole, bool kDeviceStep>
__global__ void __launch_bounds__(kThreads, kOnSm)
    mxfp4_columns_kernel(const __grid_constant__ TileArgs a, const __grid_constant__ Known k, int pieces, int at_once) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int first = (static_cast<int>(blockIdx.z) * kBand + static_cast<int>(blockIdx.x)) * at_once;
  if (first >= pieces) return;
  const int row0 = first * kPiece, column0 = (static_cast<int>(blockIdx.y) * kWarps + warp) * kColumns;
  const int count = min(at_once, pieces - first);
  WarpShared& own = reinterpret_cast<WarpShared*>(memory)[warp];
  const CopyArgs& d = a.transposed;
  const Draws& draws = d.draws;

  const auto* source = static_cast<const uint8_t*>(a.x) + (int64_t{row0 + (lane >> 3)} * a.ld + column0 + (lane & 7) * 8) * 2;
  const uint32_t in_piece = address_of(own.x + lane * 16, lane);
  // The next piece.
  const auto load = [&](int number) {
    const auto stride = static_cast<uint32_t>(a.ld * 8);
    if (number < count) {
      const int row = row0 + number * kPiece;
      if (kWhole || (row + 32 <= a.rows && column0 + kColumns <= a.cols)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) copy_async(in_piece + i * 4 * WarpShared::kPitch, source + uint64_t{stride} * static_cast<uint32_t>(i));
      } else {
        const int valid = column0 + (lane & 7) * 8 < a.cols ? a.rows - row - (lane >> 3) : 0;
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
          const uint4 w = i * 4 < valid ? load_once(source + uint64_t{stride} * static_cast<uint32_t>(i)) : uint4{};
          store16<0>(in_piece + static_cast<uint32_t>(i * 4 * WarpShared::kPitch), w.x, w.y, w.z, w.w);
        }
      }
      source += uint64_t{stride} * 8;
    }
  };
  const uint32_t base = address_of(&own, 0);
  constexpr int kAtSteps = offsetof(WarpShared, steps), kAtFlips = offsetof(WarpShared, flips);
  const auto step_of = [&] {
    if constexpr (!kDeviceStep) return host_step_words(draws);
    uint32_t w[4];
    load16<kAtSteps>(base, w);
    return StepWords{w[0], w[1], w[2]};
  };
  uint32_t group =
      draws.first + static_cast<uint32_t>(row0 + (lane & 3) * 4) * draws.row + static_cast<uint32_t>(column0 / 8 + (lane >> 2));
  const uint32_t made = address_of(own.draws + (lane >> 2) * 4 * WarpShared::kWordBytes + (lane & 3) * 16, lane);
  const uint32_t wanted = address_of(own.draws + lane * WarpShared::kWordBytes, lane);
  uint32_t codes = address_of(own.codes + WarpShared::code_at(2 * lane, 0), lane);
  const uint32_t stored = address_of(own.codes + WarpShared::code_at(lane >> 1, (lane & 1) * 16), lane);
  const uint32_t around = __shfl_sync(0xFFFFFFFFu, k.around, lane);
  uint8_t* to = byte_at(d.packed, column0 + (lane >> 1), d.C / 2, row0 / 2 + (lane & 1) * 16);
  auto* scales_to = kWhole ? byte_at(d.scales, column0 + 2 * lane, d.blocks, row0 / 32) : nullptr;
  uint32_t scales[2] = {};  // bytes of four pieces

  wait_for_primary();
  start_dependents();
  load(0);
  if constexpr (kDeviceStep) {
    const StepWords w = step_words(draws);
    *reinterpret_cast<uint4*>(own.steps) = {w.lo1, w.hi1, w.hi2, 0};
    own.flips.fill(d, 32, lane, kFlipBits);
  } else {
    reinterpret_cast<uint32_t*>(own.flips.words)[lane] = d.signs >> lane << 31 | kFlipBits;
    __syncwarp();
  }
  write_outer(a, row0 + lane, column0);
  // Of 16 rows.
  const auto draw = [&] {
    uint32_t v[4][4];
    draw8<4>(draws, step_of(), group, draws.row, v);
    __syncwarp();
    constexpr int kWord = WarpShared::kWordBytes;
    store16<0>(made, v[0][0], v[1][0], v[2][0], v[3][0]), store16<kWord>(made, v[0][1], v[1][1], v[2][1], v[3][1]);
    store16<2 * kWord>(made, v[0][2], v[1][2], v[2][2], v[3][2]), store16<3 * kWord>(made, v[0][3], v[1][3], v[2][3], v[3][3]);
    group += 16 * draws.row;
  };

#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    draw();  // they follow from positions alone: while the elements come
    wait_for_copies();
    __syncwarp();
    Block<bf16> t[2];
    {
      float v[2][32];
      const auto four_rows = [&]<int kRow>() {
        uint32_t flips[4], w[4];
        load16<kAtFlips + kRow * 4>(base, flips), load_rows<kRow * WarpShared::kPitch>(in_piece, w);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          v[0][kRow + i] = widened<0>(w[i], flips[i], k.zero), v[1][kRow + i] = widened<1>(w[i], flips[i], k.zero);
        }
      };
      [&]<int... kI>(std::integer_sequence<int, kI...>) { (four_rows.template operator()<kI * 4>(), ...); }
      (std::make_integer_sequence<int, 8>{});
      __syncwarp();
      load(number + 1);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        butterflies(v[j]);
#pragma unroll
        for (int i = 0; i < 16; ++i) t[j].w[i] = bf16_words(v[j][row_of(i)] * hadamard_norm(32), v[j][row_of(i) + 2] * hadamard_norm(32));
      }
    }
    uint32_t out[2][4];
    float factor[2];
    uint32_t byte[2];
    position_factors(k.scale, t, byte, factor);
#pragma unroll
    for (int j = 0; j < 2; ++j) scales[j] = __byte_perm(scales[j], byte[j], 0x4321);
    const auto eight = [&]<int kGroup>() {
      uint32_t words[8];
      load16<kGroup % 2 * 32>(wanted, words), load16<kGroup % 2 * 32 + 16>(wanted, words + 4);
      out[0][kGroup] = encode8(t[0], kGroup, factor[0], k, [&](int i) { return __byte_perm(words[i], around, 0x5104); });
      out[1][kGroup] = encode8(t[1], kGroup, factor[1], k, [&](int i) { return __byte_perm(words[i], around, 0x5324); });
    };
    eight.template operator()<0>(), eight.template operator()<1>();
    draw();
    __syncwarp();
    eight.template operator()<2>(), eight.template operator()<3>();
    store16<0>(codes, out[0][0], out[0][1], out[0][2], out[0][3]), store16<32>(codes, out[1][0], out[1][1], out[1][2], out[1][3]);
    codes ^= 16;
    if (number % 2 == 0) continue;
    __syncwarp();
    if constexpr (kWhole) {
      const uint64_t step = uint64_t{static_cast<uint32_t>(d.C)} * 8;
      uint32_t w[16];
      load16<0>(stored, w), load16<512>(stored, w + 4), load16<1024>(stored, w + 8), load16<1536>(stored, w + 12);
      store4(to, w), store4(to + step, w + 4), store4(to + 2 * step, w + 8), store4(to + 3 * step, w + 12);
      to += kPiece;
    } else {
      flush_pieces<4, 64, 64, 32>(d.packed, d, column0, row0 + (number - 1) * kPiece, lane,
                                  [&](int v, int at) { return own.codes + WarpShared::code_at(v, at); });
    }
    if (at_once == 2) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t staged = scales[j] >> 16;
        if constexpr (kWhole) {
          *reinterpret_cast<uint16_t*>(scales_to + j * d.blocks) = static_cast<uint16_t>(staged);
        } else {
          store_scales<uint16_t, false>(d, reinterpret_cast<const uint8_t*>(&staged), column0 + 2 * lane + j, row0 + (number - 1) * kPiece);
        }
      }
    } else if (number % 4 == 3) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t staged = scales[j];
        if constexpr (kWhole) {
          *reinterpret_cast<uint32_t*>(scales_to + j * d.blocks) = staged;
        } else {
          store_scales<uint32_t, false>(d, reinterpret_cast<const uint8_t*>(&staged), column0 + 2 * lane + j, row0 + (number - 3) * kPiece);
        }
      }
      if constexpr (kWhole) scales_to += 4;
    }
  }
}

}  // namespace

bool launch_mxfp4_columns(const TileArgs& a, TileGrid tiles, cudaStream_t stream) {
  if (!packs_blocks(a.transposed, 32)) return false;
  const int pieces = static_cast<int>(tiles.rows) * (kTile / kPiece);
  // More for fewer first elements that a warp waits for, where that leaves thread blocks enough.
  const int at_once = static_cast<int64_t>(tiles.rows) * tiles.columns < 2048 ? 2 : 4;
  static_assert(kTile % (kWarps * kColumns) == 0);
  const dim3 grid = band_grid({static_cast<unsigned>((pieces + at_once - 1) / at_once), tiles.columns * (kTile / (kWarps * kColumns))});
  if (grid.y > 65535) return false;
  const bool all = a.rows % kTile == 0 && a.cols % kTile == 0 && whole_packed(a.transposed, a.rows, 4);
  const bool device_step = a.transposed.draws.step != nullptr || a.transposed.signs_step != nullptr;
  const auto kernel = !all          ? mxfp4_columns_kernel<false, true>
                      : device_step ? mxfp4_columns_kernel<true, true>
                                    : mxfp4_columns_kernel<true, false>;
  constexpr int kBytes = sizeof(WarpShared) * kWarps;
  static_assert((kBytes + 1024) * kOnSm <= 227 * 1024);
  return launch_pair(kernel, grid, kThreads, kBytes, stream, a, Known(a.transposed.mx), pieces, at_once);
}

}  // namespace halftone::device
