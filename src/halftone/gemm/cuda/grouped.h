#pragma once
#include <cuda_runtime_api.h>

#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// An operand's factors as one vector: [rows] of A in `rows`, else [groups, rows]; [groups] without row scales.
struct FactorJob {
  GroupedOperand from;     // scales none, tensor or row, and outer
  int64_t rows = 0;        // vector length per group; 1 without row scales
  bool of_buffer = false;  // A in `rows`: row scales over the full buffer
  float factor = 1;
  float* to = nullptr;  // null: nothing to do
};

// Setup of a tensor-core GEMM: factors, group order, and zeros for rows that no tile writes.
struct GroupedPrepare {
  FactorJob jobs[2];
  int32_t* order = nullptr;  // see GroupedCall
  GroupedProduct product{};
};
cudaError_t grouped_prepare(const GroupedPrepare& what, cudaStream_t stream);

// All combinations of element types and scales, in fp32 (s8 without block scales in int32), without tensor cores. Reads the factors in
// place, and macro bytes of B in `rows` from a contiguous [groups, ...].
cudaError_t grouped_portable(const GroupedProduct& p, cudaStream_t stream);

}  // namespace halftone::gemm
