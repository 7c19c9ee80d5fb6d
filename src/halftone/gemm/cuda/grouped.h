#pragma once
#include <cuda_runtime_api.h>

#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// An operand's factors as one vector: [rows] of A in `rows`, else [groups, rows]; without row scales [groups].
struct FactorJob {
  GroupedOperand from;     // scales of none, tensor or row, and outer
  int64_t rows = 0;        // of the vector, of one group; 1 without row scales
  bool of_buffer = false;  // A in `rows`: the rows are those of the whole buffer
  float factor = 1;
  float* to = nullptr;  // null: nothing to do
};

// What a tensor-core product wants to be ready: factors, the order of the groups, and zeros where no tile of it writes.
struct GroupedPrepare {
  FactorJob jobs[2];
  int32_t* order = nullptr;  // as in GroupedCall
  GroupedProduct product{};
};
cudaError_t grouped_prepare(const GroupedPrepare& what, cudaStream_t stream);

// Every combination of numbers and scales, in fp32 (s8 without block scales in int32), without tensor cores. The factors are read where
// they are, macro bytes of B in `rows` from a contiguous [groups, ...].
cudaError_t grouped_portable(const GroupedProduct& p, cudaStream_t stream);

}  // namespace halftone::gemm
