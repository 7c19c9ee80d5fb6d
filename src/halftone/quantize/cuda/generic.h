#pragma once
#include <cuda_runtime_api.h>

#include "halftone/formats/scale_pair.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// Any copy of any shape, element by element by the scalar rules of formats/: what no tile or row kernel takes.
size_t generic_workspace(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed);
cudaError_t quantize_generic(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* workspace, cudaStream_t stream);

// bitnet's weight: sum of |x| in fp64 in the order of formats/pairwise_sum.h, then its scale into *out; with groups of rows that of each
// set into out [sets], and tile_groups as of map_groups (statistics.h).
size_t ternary_workspace(const QuantizeOperand& p);
cudaError_t collect_ternary(const QuantizeOperand& p, void* workspace, ScalePair* out, int32_t* tile_groups, cudaStream_t stream);

}  // namespace halftone::device
