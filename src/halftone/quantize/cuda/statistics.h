#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// One read of a matrix [rows, cols] for everything that must be known before a copy with scales of tensors, rows or columns can
// be written. All results are bits32 of magnitudes; null ones are not computed.
struct StatisticsArgs {
  const void* x;
  DType type;
  bool as_bf16;  // quantize/operand.h
  int rows, cols;
  int64_t ld;
  RowSource from;  // quantize/operand.h
  // With groups of rows, tile_groups not null: every array but `row` once for each set, [sets, ...], of one part and zeroed here, for all
  // tiles.
  RowGroups groups;
  int32_t* tile_groups;      // where map_groups leaves them, by the call with the first tile
  int first_tile, tiles;     // that are read
  uint32_t* tensor;          // [kStatisticsParts], to be reduced by whoever reads them
  uint32_t* rotated;         // [kStatisticsParts] after the Hadamard transform of `hadamard` rows
  uint32_t* row;             // [rows], or [2, rows] with `by_sign`; zeroed here
  uint32_t* column;          // [cols] or [2, cols]
  uint32_t* rotated_column;  // [cols]
  int hadamard;
  uint32_t signs;
  const uint32_t* signs_step;  // quantize/operand.h
  PhiloxKey signs_key;
  // Set here.
  bool wait_first;                   // the launch before this one may still write x
  int keep_from;                     // rows from here on stay in the L2 cache
  int teams;                         // thread blocks or warps that take turns with the same columns
  bool shared_rows;                  // the warps of a thread block share rows
  bool by_sign_row, by_sign_column;  // int4: maxima of the elements without and with a sign; not together with a rotation
};
inline constexpr int kStatisticsParts = kAmaxParts;
// Of the matrix's end, which the next kernel reads first: what is to stay in the L2 cache of 50 MB. 20 and 36 MiB do as well.
inline constexpr int64_t kKeptBytes = int64_t{28} << 20;

// Whether a pass over x is launched as a dependent of whatever was queued before: 1 to 2 us less. Such a launch finds the
// multiprocessors divided between shared memory and first-level cache as that left them, and with little cache a pass is slower: where it
// takes long, by more than that.
constexpr bool starts_early(DType type, int64_t rows, int64_t cols) { return type == DType::bf16 && rows * cols <= int64_t{64} << 20; }

// x aligned to 16 bytes, cols and ld multiples of 8.
cudaError_t collect_statistics(const StatisticsArgs& a, cudaStream_t stream);

// Sets of scales of a matrix with groups of rows: of each group, then of the rows beyond them.
constexpr int64_t sets_of(const RowGroups& g) { return g.groups + 1; }
__device__ __forceinline__ int64_t first_row(const RowGroups& g, int64_t set, int64_t rows) {
  return set <= g.groups ? g.offsets[set] : rows;
}
// Which set the rows of each of `tiles` tiles of kGroupRows are of. zeros [n]: null, or cleared, too.
cudaError_t map_groups(const RowGroups& groups, int64_t tiles, int32_t* tile_groups, uint32_t* zeros, int64_t n, bool early,
                       cudaStream_t stream);

// The largest magnitude into *out, of any matrix.
cudaError_t collect_amax(const void* x, DType type, bool as_bf16, int64_t rows, int64_t cols, int64_t ld, uint32_t* out,
                         cudaStream_t stream);

}  // namespace halftone::device
