#pragma once
#include <cuda_runtime_api.h>

#include "halftone/formats/scale_pair.h"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// Fallback for all copies that no tile or row kernel supports: any shape, element by element by the scalar rules of formats/.
size_t generic_workspace(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed);
cudaError_t quantize_generic(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* workspace, cudaStream_t stream);

// bitnet's weight: sum of |x| in fp64 in the order of formats/pairwise_sum.h, then its scale into *out. With groups of rows: one scale per
// set into out [sets], and tile_groups as in map_groups (statistics.h).
size_t ternary_workspace(const QuantizeOperand& p);
cudaError_t collect_ternary(const QuantizeOperand& p, void* workspace, ScalePair* out, int32_t* tile_groups, cudaStream_t stream);

// Rotates the matrix along the copy's contraction: to out, [C, cols] for a transposed copy, else [rows, C], rounded to `type`.
cudaError_t rotate_matrix(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, void* out, DType type, cudaStream_t stream);

}  // namespace halftone::device
