#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/philox.h"

namespace halftone::device {

// One read of a matrix [rows, cols] for everything that must be known before a copy with scales of tensors, rows or columns can
// be written. All results are bits32 of magnitudes; null ones are not computed.
struct StatisticsArgs {
  const void* x;
  DType type;
  int rows, cols;
  int64_t ld;
  uint32_t* tensor;          // [kStatisticsParts], to be reduced by whoever reads them
  uint32_t* rotated;         // [kStatisticsParts] after the Hadamard transform of `hadamard` rows
  uint32_t* row;             // [rows], or [2, rows] with `by_sign`; zeroed here
  uint32_t* column;          // [cols] or [2, cols]
  uint32_t* rotated_column;  // [cols]
  int hadamard;
  uint32_t signs;
  const uint32_t* signs_step;  // quantize/operand.h
  PhiloxKey signs_key;
  bool shared_rows;                  // set here: the warps of a thread block share rows
  bool by_sign_row, by_sign_column;  // int4: maxima of the elements without and with a sign; not together with a rotation
};
inline constexpr int kStatisticsParts = 132;

// x aligned to 16 bytes, cols and ld multiples of 8.
cudaError_t collect_statistics(const StatisticsArgs& a, cudaStream_t stream);

// The largest magnitude into *out, of any matrix.
cudaError_t collect_amax(const void* x, DType type, int64_t rows, int64_t cols, int64_t ld, uint32_t* out, cudaStream_t stream);

}  // namespace halftone::device
