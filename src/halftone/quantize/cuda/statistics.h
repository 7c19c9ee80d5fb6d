#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// One pass over a matrix [rows, cols] that collects all maxima needed before copies with tensor, row or column scales can be written. All
// results are bits32 of magnitudes; null outputs are not computed.
struct StatisticsArgs {
  const void* x;
  DType type;
  bool as_bf16;  // quantize/operand.h
  int rows, cols;
  int64_t ld;
  RowSource from;  // quantize/operand.h
  // With groups of rows (tile_groups not null): every array except `row` has one part per set, [sets, ...], zeroed here, for all tiles.
  RowGroups groups;
  int32_t* tile_groups;      // written by map_groups, in the call with the first tile
  int first_tile, tiles;     // tiles to read
  uint32_t* tensor;          // [kStatisticsParts], reduced by the consumer
  uint32_t* rotated;         // [kStatisticsParts], after a Hadamard transform over `hadamard` rows
  uint32_t* row;             // [rows], or [2, rows] with `by_sign`; zeroed here
  uint32_t* column;          // [cols] or [2, cols]
  uint32_t* rotated_column;  // [cols]
  int hadamard;
  RotationSigns signs;
  const uint32_t* signs_step;  // quantize/operand.h
  PhiloxKey signs_key;
  // Set by collect_statistics.
  bool wait_first;                   // the preceding launch may still write x
  int keep_from;                     // rows from here on stay in the L2 cache
  int teams;                         // thread blocks or warps that take turns on the same columns
  bool shared_rows;                  // the warps of a thread block share rows
  bool by_sign_row, by_sign_column;  // int4: maxima of elements without and with the sign bit; not with a rotation
};
inline constexpr int kStatisticsParts = kAmaxParts;
// Bytes at the matrix's end kept in the 50 MB L2 cache, because the next kernel reads them first. 20 and 36 MiB perform the same.
inline constexpr int64_t kKeptBytes = int64_t{28} << 20;

// Whether a pass over x is launched as a dependent of the preceding work: saves 1 to 2 us. Such a launch inherits the SM's split between
// shared memory and L1, and a pass is slower with little L1: for long passes the loss exceeds the gain.
constexpr bool starts_early(DType type, int64_t rows, int64_t cols) { return type == DType::bf16 && rows * cols <= int64_t{64} << 20; }

// x is aligned to 16 bytes; cols and ld are multiples of 8.
cudaError_t collect_statistics(const StatisticsArgs& a, cudaStream_t stream);

// Sets of scales of a matrix with groups of rows: one per group, then one for the rows after the last group.
constexpr int64_t sets_of(const RowGroups& g) { return g.groups + 1; }
__device__ __forceinline__ int64_t first_row(const RowGroups& g, int64_t set, int64_t rows) {
  return set <= g.groups ? g.offsets[set] : rows;
}
// Maps each of `tiles` tiles of kGroupRows rows to its set. zeros [n]: optional memory to clear.
cudaError_t map_groups(const RowGroups& groups, int64_t tiles, int32_t* tile_groups, uint32_t* zeros, int64_t n, bool early,
                       cudaStream_t stream);

// amax of any matrix into *out.
cudaError_t collect_amax(const void* x, DType type, bool as_bf16, int64_t rows, int64_t cols, int64_t ld, uint32_t* out,
                         cudaStream_t stream);

}  // namespace halftone::device
