#pragma once
#include <bit>

#include "halftone/quantize/cuda/async_copy.cuh"
#include "halftone/quantize/cuda/blocks_kernel.cuh"

namespace halftone::device {

// Kernels whose threads make both codes of an element together, with stochastic rounding: a thread has 8 x 8 elements, a warp 32 rows of
// 64. Both draws of an element are then its thread's own, and it is read (bf16: widened) once.

// An element of a pair as fp32. The lower one by the integer units: shifts may go to the multipliers, which have more to do here.
template <int kHalf>
__device__ __forceinline__ float widened(uint32_t pair) {
  return __uint_as_float(kHalf == 0 ? __byte_perm(pair, 0u, 0x1044) : pair & 0xFFFF0000u);
}
// Without a branch, across which nothing would be overlapped.
__device__ __forceinline__ void store_if(bool valid, uint8_t* to, uint2 v) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.u32 [%0], {%1,%2};}" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(static_cast<uint32_t>(valid))
               : "memory");
}
__device__ __forceinline__ void store_if(bool valid, uint8_t* to, uint32_t v) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u32 [%0], %1;}" ::"l"(to), "r"(v), "r"(static_cast<uint32_t>(valid))
               : "memory");
}

// __byte_perm, but that signs of bytes can be asked for.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t select) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
  return r;
}

// Not from the registers that it was stored from.
__device__ __forceinline__ void load_shared(const uint8_t* at, uint32_t* to) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at)))
               : "memory");
}
// An element of a pair as fp32, by the multipliers, which have less to do here; kFinite: it is finite.
template <bool kFinite>
__device__ __forceinline__ float element_of(uint32_t pair, int half) {
  if (half == 0) return __uint_as_float(pair << 16);
  if constexpr (!kFinite) return widened<1>(pair);
  return __uint_as_float(as_word(__hfma2(both_halves<1>(pair), __floats2bfloat162_rn(0.0f, 1.0f), __float2bfloat162_rn(0.0f))));
}

// NaN and infinity become 0.
__device__ __forceinline__ void clear_specials(uint32_t& pair) {
  if ((pair & 0x00007F80u) == 0x00007F80u) pair &= 0xFFFF0000u;
  if ((pair & 0x7F800000u) == 0x7F800000u) pair &= 0x0000FFFFu;
}

// What a warp has in shared memory, of bf16: row i of its lanes' 8 x 8 elements, 16 bytes a lane; then, in their place, its piece of the
// transposed copy: 64 columns of 32 codes.
struct PairWarps {
  static constexpr int kRowBytes = 32 * 16;
  alignas(128) uint8_t warps[8][8 * kRowBytes];
  // Columns change places so that lanes meet different banks, when they write eight columns apart and when they read a column of four
  // warps.
  static __device__ __forceinline__ int codes_at(int warp, int column, int at) {
    return (column * 32 + at) ^ (((column >> 3) + (warp >> 1)) & 3) << 5;
  }
  // The same of packed codes, 16 bytes a column.
  static __device__ __forceinline__ int packed_at(int warp, int column) { return (column ^ ((column >> 3 ^ warp & 6) & 7)) * 16; }
};

// Every lane copies what it reads itself, from element (row, column) on; zeros beyond the matrix. whole: the tile lies within it.
__device__ __forceinline__ void copy_own(const TileArgs& a, int row, int column, bool whole, uint8_t* own) {
  constexpr int kRowBytes = PairWarps::kRowBytes;
  const auto* source = static_cast<const uint8_t*>(a.x) + (int64_t{row} * a.ld + column) * 2;
  const auto stride = static_cast<uint32_t>(a.ld * 2);
  if (whole) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(own));
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) copy_async(to + i * kRowBytes, source + uint64_t{stride} * i);
    return;
  }
  const int valid = column < a.cols ? a.rows - row : 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    copy_async(own + i * kRowBytes, i < valid ? source + uint64_t{stride} * static_cast<uint32_t>(i) : static_cast<const uint8_t*>(a.x),
               i < valid);
  }
}

__device__ __forceinline__ void read_words(const void* at, uint32_t* to) {
  const uint4 x = *static_cast<const uint4*>(at);
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
// Largest magnitudes of the rows and of the columns of a thread's elements, by integer maxima of three, half as many as of two: the
// magnitudes are made by the multipliers, which have less to do. read(i, w): the words of row i.
template <class Read>
__device__ __forceinline__ void maxima_of_rows(Read&& read, Amax8<bf16>& of_rows, Amax8<bf16>& of_columns) {
  uint32_t last = 0, w[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t(&m)[4] = w[i % 2];
    read(i, m);
#pragma unroll
    for (uint32_t& pair : m) pair = as_word(__habs2(as_pair(pair)));
    const uint32_t most = __vmaxu2(__vimax3_u16x2(m[0], m[1], m[2]), m[3]);
    if (i % 2 == 0) {
      last = most;
      continue;
    }
    of_rows.w[i >> 1] = __vmaxu2(__byte_perm(last, most, 0x5410), __byte_perm(last, most, 0x7632));
#pragma unroll
    for (int k = 0; k < 4; ++k) of_columns.w[k] = i == 1 ? __vmaxu2(w[0][k], w[1][k]) : __vimax3_u16x2(of_columns.w[k], w[0][k], w[1][k]);
  }
}

__device__ __forceinline__ void maxima_of(const uint8_t* own, Amax8<bf16>& of_rows, Amax8<bf16>& of_columns) {
  maxima_of_rows([&](int i, uint32_t* w) { read_words(own + i * PairWarps::kRowBytes, w); }, of_rows, of_columns);
}

// Blocks without a second level. By the thread of element (0, 0).
__device__ __forceinline__ void write_outer(const TileArgs& a, int row, int column) {
  if (row != 0 || column != 0) return;
  if (a.row.outer != nullptr) *a.row.outer = 1;
  if (a.transposed.outer != nullptr) *a.transposed.outer = 1;
}

// The draws of a thread's elements, from (row, column) on, for either copy.
struct PairDraws {
  const TileArgs& a;
  const StepWords row_step = step_words(a.row.draws), column_step = step_words(a.transposed.draws);
  const uint32_t row_group, column_group;
  __device__ __forceinline__ PairDraws(const TileArgs& args, int row, int column)
      : a(args), row_group(first_group(a.row.draws, row, column)), column_group(first_group(a.transposed.draws, row, column)) {}
  static __device__ __forceinline__ uint32_t first_group(const Draws& d, int row, int column) {
    return d.first + static_cast<uint32_t>(row) * d.row + static_cast<uint32_t>(column) / 8;
  }
  // Of rows i and i + kApart. kOnce: draw8.
  template <uint32_t kApart = 1, bool kOnce = true>
  __device__ __forceinline__ void two_rows(uint32_t i, uint32_t (*of_row)[4], uint32_t (*of_column)[4]) const {
    const Draws &r = a.row.draws, &c = a.transposed.draws;
    draw8<2, kOnce>(r, row_step, row_group + i * r.row, r.row * kApart, of_row);
    draw8<2, kOnce>(c, column_step, column_group + i * c.row, c.row * kApart, of_column);
  }
};

// Both draws of a thread's elements where their groups are the same: one product of a group is then shared, too. The step of the host is
// not asked for, which would cost 24 instructions under predicates.
template <bool kDeviceStep>
struct SharedDraws {
  const Draws &row, &column;
  const StepWords row_step = words(row), column_step = words(column);
  uint32_t group;
  __device__ __forceinline__ SharedDraws(const TileArgs& a, int r, int c)
      : row(a.row.draws), column(a.transposed.draws), group(PairDraws::first_group(row, r, c)) {}
  static __device__ __forceinline__ StepWords words(const Draws& d) {
    if constexpr (kDeviceStep) return step_words(d);
    return host_step_words(d);
  }
  // Of rows i and i + kApart. kTogether: both copies round by round, not one after the other.
  template <uint32_t kApart = 1, bool kTogether = false>
  __device__ __forceinline__ void two_rows(uint32_t i, uint32_t (&of_row)[2][4], uint32_t (&of_column)[2][4]) const {
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      const uint64_t a = uint64_t{kPhilox0} * (group + (i + n * kApart) * row.row);
      first_rounds(row, row_step, a, of_row[n]), first_rounds(column, column_step, a, of_column[n]);
    }
    if constexpr (!kTogether) {
      other_rounds<2, true>(row, row_step, of_row), other_rounds<2, true>(column, column_step, of_column);
    } else {
#pragma unroll
      for (int k = 2; k < 10; ++k) {
#pragma unroll
        for (int n = 0; n < 2; ++n) round(k, row, row_step, of_row[n]);
#pragma unroll
        for (int n = 0; n < 2; ++n) round(k, column, column_step, of_column[n]);
      }
    }
  }

 private:
  // As in other_rounds: by one function for both, the compiler makes two sums of 17 sums of three words here.
  static __device__ __forceinline__ void round(int k, const Draws& d, const StepWords& w, uint32_t (&v)[4]) {
    const uint64_t a = uint64_t{kPhilox0} * v[0], b = uint64_t{kPhilox1} * v[2];
    v[0] = static_cast<uint32_t>(b >> 32) ^ v[1] ^ d.key_lo[k], v[1] = static_cast<uint32_t>(b);
    v[2] = static_cast<uint32_t>(a >> 32) ^ v[3] ^ (k == 2 ? w.hi2 : d.key_hi[k]), v[3] = static_cast<uint32_t>(a);
  }
};

// Two rows of a thread: elements of bf16 by pairs of columns, the draws of either copy, and the codes, of the transposed copy four to a
// word: both rows of one column, then of the other.
struct TwoRows {
  uint32_t words[2][4], row_draws[2][4], column_draws[2][4];
  uint32_t row_codes[2][2], column_codes[4];
  // From what both(r, k, of_row, of_column) leaves in byte 3 of either for row r and column k.
  template <class Both>
  __device__ __forceinline__ void encode_bytes(Both&& both) {
    uint32_t even[8], of_columns[8];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t s[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        uint32_t c;
        both(r, k, s[k], c);
        if (r == 0) {
          even[k] = c;
        } else {
          of_columns[k] = __byte_perm(even[k], c, 0x0073);
        }
      }
      row_codes[r][0] = gather_bytes(s[0], s[1], s[2], s[3], 3), row_codes[r][1] = gather_bytes(s[4], s[5], s[6], s[7], 3);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) column_codes[k] = __byte_perm(of_columns[2 * k], of_columns[2 * k + 1], 0x5410);
  }
};
// encode(i, t) makes the codes of rows i and i + 1; those of the row copy, which begins at (row, column) here, are stored, those of the
// transposed one go to keep(half, codes): four rows of a column a word.
template <class Encode, class Keep>
__device__ __forceinline__ void encode_rows(const TileArgs& a, const PairDraws& draws, int row, int column, Encode&& encode, Keep&& keep) {
  const int valid_rows = column < a.row.C ? min(max(a.row.R - row, 0), 8) : 0;
  uint8_t* row_codes = a.row.codes + (int64_t{row} * a.row.C + column);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t first_rows[4];
#pragma unroll
    for (int i = half * 4; i < half * 4 + 4; i += 2) {
      TwoRows t;
      draws.two_rows(static_cast<uint32_t>(i), t.row_draws, t.column_draws);
      encode(i, t);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        store_if(i + r < valid_rows, row_codes + uint64_t{static_cast<uint32_t>(a.row.C)} * static_cast<uint32_t>(i + r),
                 uint2{t.row_codes[r][0], t.row_codes[r][1]});
      }
      if (i % 4 == 0) {
#pragma unroll
        for (int k = 0; k < 4; ++k) first_rows[k] = t.column_codes[k];
        continue;
      }
      uint32_t codes[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) codes[k] = __byte_perm(first_rows[k >> 1], t.column_codes[k >> 1], k % 2 == 0 ? 0x5410 : 0x7632);
      keep(half, codes);
    }
  }
}
// The draw of an element in the given half of a pair, within what PositionCode::kPlace and the element's sign make.
__device__ __forceinline__ uint32_t place_in_pair(uint32_t draws, uint32_t place, int half) {
  return __byte_perm(draws, place, half == 0 ? 0x5104 : 0x7324);
}

// The transposed copy: codes of a thread's eight columns, four rows a word, in the place of its warp's elements, and from there to memory.
template <class Shared>
__device__ __forceinline__ void stage_columns(Shared& shared, const uint32_t (&columns)[2][8], int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    *reinterpret_cast<uint2*>(shared.warps[warp] + PairWarps::codes_at(warp, (lane & 7) * 8 + k, (lane >> 3) * 8)) = {columns[0][k],
                                                                                                                      columns[1][k]};
  }
}
template <class Shared>
__device__ __forceinline__ void flush_columns(const Shared& shared, const CopyArgs& d, int tile_r, int tile_c, int thread) {
  flush_pieces<8, kTile, kTile, kTileThreads>(d.codes, d, tile_c * kTile, tile_r * kTile, thread, [&](int v, int at) {
    const int of = (at >> 5) * 2 + (v >> 6);
    return shared.warps[of] + PairWarps::codes_at(of, v & 63, at & 31);
  });
}

// That and the scales of MX blocks, of both copies.
template <class Shared>
__device__ __forceinline__ void store_mx_columns(Shared& shared, const TileArgs& a, const uint32_t (&columns)[2][8], int tile_r, int tile_c,
                                                 int thread) {
  __syncwarp();
  stage_columns(shared, columns, thread >> 5, thread & 31);
  __syncthreads();
  flush_scales<32>(a.row, shared.row_scales, tile_r * kTile, tile_c * kTile, thread);
  flush_scales<32>(a.transposed, shared.transposed_scales, tile_c * kTile, tile_r * kTile, thread - kTile);
  flush_columns(shared, a.transposed, tile_r, tile_c, thread);
}

// Packed: eight rows of a column a word.
__device__ __forceinline__ void stage_packed_columns(PairWarps& shared, const uint32_t (&columns)[8], int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    *reinterpret_cast<uint32_t*>(shared.warps[warp] + PairWarps::packed_at(warp, (lane & 7) * 8 + k) + (lane >> 3) * 4) = columns[k];
  }
}
__device__ __forceinline__ void flush_packed_columns(const PairWarps& shared, const CopyArgs& d, int tile_r, int tile_c, int thread) {
  flush_pieces<4, kTile, kTile, kTileThreads>(d.packed, d, tile_c * kTile, tile_r * kTile, thread, [&](int v, int at) {
    const int of = (at >> 4) * 2 + (v >> 6);
    return shared.warps[of] + PairWarps::packed_at(of, v & 63);
  });
}

// Byte `at` of vector r.
__device__ __forceinline__ uint8_t* byte_at(void* base, int r, int stride, int at) {
  return static_cast<uint8_t*>(base) + (uint64_t{static_cast<uint32_t>(r)} * static_cast<uint32_t>(stride) + static_cast<uint32_t>(at));
}
// Scale bytes of vector r, as many as a Word has from element c on. kWhole: all that is asked for here is so.
template <class Word, bool kWhole>
__device__ __forceinline__ void store_scales(const CopyArgs& d, const uint8_t* staged, int r, int c) {
  constexpr int kEach = sizeof(Word);
  if constexpr (kWhole) {
    *reinterpret_cast<Word*>(byte_at(d.scales, r, d.blocks, c / 32)) = *reinterpret_cast<const Word*>(staged);
  } else {
    if (d.scales == nullptr || r >= d.R || c >= d.C) return;
    uint8_t* out = byte_at(d.scales, r, d.blocks, c / 32);
    const int count = min(d.blocks - c / 32, kEach);
    if (count == kEach && reinterpret_cast<uintptr_t>(out) % kEach == 0) {
      *reinterpret_cast<Word*>(out) = *reinterpret_cast<const Word*>(staged);
      return;
    }
    for (int i = 0; i < count; ++i) out[i] = staged[i];
  }
}

__device__ __forceinline__ void read4(const float* at, float* to) {
  const float4 f = *reinterpret_cast<const float4*>(at);
  to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
}

// mx_byte of two bf16 magnitudes in the halves of a word, exactly: every mode adds something to the bits, takes the exponent, and 2 from
// it (all magnitudes and modes were compared). Poisoned ones come out above kLargestFactor.
struct PairScale {
  uint32_t add, lowest;
  explicit PairScale(const MxRule& r)
      : add((r.by == 1 ? r.add >> 16 : 63u) * 0x00010001u), lowest(static_cast<uint32_t>(r.lowest) * 0x00010001u) {}
  __device__ __forceinline__ uint32_t operator()(uint32_t pair) const {
    return __viaddmax_s16x2((pair + add) >> 7 & 0x01FF01FFu, 0xFFFEFFFEu, lowest);
  }
};
// Bit 15 of the halves that are more than `most`.
__device__ __forceinline__ uint32_t above(uint32_t pair, uint32_t most) { return (pair + (0x7FFFu - most) * 0x00010001u) & 0x80008000u; }

// What MX blocks of a warp ask of their elements beside the product: nothing; bounds or the codes of poisoned blocks; a lift, too.
enum class Care : uint32_t { none, range, lift };

// Codes by way of positions (Stochastic).
template <Float kFormat>
struct PositionCode {
  using Rule = Stochastic<kFormat>;
  static constexpr uint32_t kMost = std::bit_cast<uint32_t>(Rule::kMax) - (127u << 23);  // of a block, where the byte of its scale is 0
  // What goes around draws: half of their step in byte 0, of pairs' both; above them bytes of ones, 3 and of pairs' lower elements 1. An
  // element's sign, flipped there, comes out in its code.
  static constexpr uint32_t kPlace = Rule::kHalf | 0xFF00FF00u;
  // The code of x in byte 3. shift: 2^Rule::kShift in a register.
  template <Care kCare>
  static __device__ __forceinline__ uint32_t code(float x, float factor, uint32_t shift, uint32_t below) {
    constexpr uint32_t kMost = std::bit_cast<uint32_t>(Rule::kMax * Rule::kToPosition);
    float a = fabsf(x);
    if constexpr (kCare == Care::lift) a = factor < 0 ? a * kLowered : a, factor = fabsf(factor);
    uint32_t position = __float_as_uint(__fmul_ru(a, factor));
    if constexpr (kCare != Care::none) position = min(position, kMost);
    return multiply_add(position, shift, 0u - below);
  }
};

// Packed codes in blocks of 32, without the second kernel that arranges scales.
inline bool packs_blocks(const CopyArgs& d, int hadamard) { return !d.tile && d.hadamard == hadamard && d.scale_tiles == nullptr; }
// Whether all vectors of packed codes have C elements, 16 bytes of codes at aligned addresses and scales_at_once of scales.
inline bool whole_packed(const CopyArgs& d, int C, int scales_at_once) {
  const auto aligned = [](const void* p, int to) { return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(to) == 0; };
  return d.C == C && d.blocks % scales_at_once == 0 && d.scales != nullptr && aligned(d.scales, scales_at_once) && aligned(d.packed, 16);
}
// Always true: what the launch functions of these kernels return.
template <class... Params, class... Args>
bool launch_pair(void (*kernel)(Params...), dim3 grid, int threads, int bytes, cudaStream_t stream, const Args&... args) {
  DependentLaunch how(grid, threads, stream, true);
  how.config.dynamicSmemBytes = static_cast<size_t>(bytes);
  if (bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchKernelEx(&how.config, kernel, args...);
  return true;
}

}  // namespace halftone::device
