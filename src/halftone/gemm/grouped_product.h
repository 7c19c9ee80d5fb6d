#pragma once
#include "halftone/base/row_groups.h"
#include "halftone/gemm/product.h"

namespace halftone::gemm {

// Grouped GEMM: every group of rows times its own weight, in one launch; the host does not know the groups (numerics.md section 8).
//   rows         D[rows of g, n] = A[rows of g, k] . B_g[n, k]^T        forward (B_g = W_g), dgrad (B_g = W_g^T, its transposed copy)
//   contraction  D_g[m, n] (+)= A[m, rows of g] . B[n, rows of g]^T     wgrad: A = dY^T, B = X^T
// In `rows`, A [R, k] and D [R, n] span the full buffer of R rows; B_g begins g * b.stride elements after B. Rows of D at or beyond
// offsets[groups] are zero-filled. In `contraction`, A [m, R] and B [n, R] span the full buffer and every group contracts its own
// columns; D_g begins g * m * n elements after D. An empty group gives zeros, or leaves D_g unchanged if accumulating. Columns from ends[g]
// on, rounded up to a multiple of kContractionStep, may be left out: they must be zeros.
// An unquantised operand may be `transposed`: A [R, m] and B [R, n] in `contraction`, B_g [k, n] in `rows`.
//
// Scales as in Product with one set per group: `tensor` and `outer` are [groups]; `row` is [R] for A in `rows`, else [groups, rows of the
// operand]. block128, tile128 and macro bytes are those of the full matrix; for B_g, scales begin g * b.scale_stride floats after `scale`
// and macro bytes are contiguous from group to group.
enum class Ragged { rows, contraction };
inline constexpr int64_t kContractionStep = 64;

struct GroupedOperand : ProductOperand {
  int64_t stride = 0;        // B in `rows`: elements from group to group
  int64_t scale_stride = 0;  // B in `rows`: floats from group to group in block128 and tile128 scales
};

struct GroupedProduct {
  Ragged ragged = Ragged::rows;
  RowGroups groups;
  int64_t rows = 0;             // R, a multiple of kGroupRows
  int64_t m = 0, n = 0, k = 0;  // per group; the ragged dimension is 0
  GroupedOperand a, b;
  void* d = nullptr;  // contiguous
  DType d_type = DType::bf16;
  bool accumulate = false;  // `contraction` only: add to the contents of D
  float alpha = 1;
  bool fast_accumulation = false;  // as in Product
  void* workspace = nullptr;       // device memory for this call only, 256-byte aligned
  int64_t workspace_bytes = 0;
};

}  // namespace halftone::gemm
