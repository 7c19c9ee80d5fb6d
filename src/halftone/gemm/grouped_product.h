#pragma once
#include "halftone/base/row_groups.h"
#include "halftone/gemm/product.h"

namespace halftone::gemm {

// Products of every group of rows with its own weight, in one launch, without the host knowing the groups (numerics.md section 8).
//   rows         D[rows of g, n] = A[rows of g, k] . B_g[n, k]^T        forward (B_g = W_g), dgrad (B_g = W_g^T, its transposed copy)
//   contraction  D_g[m, n] (+)= A[m, rows of g] . B[n, rows of g]^T     wgrad: A = dY^T, B = X^T
// In `rows`, A is one matrix [R, k] and D one [R, n] of the whole buffer of R rows; B_g begins g * b.stride elements after B. Rows of D at
// or beyond offsets[groups] are written as zeros. In `contraction`, A [m, R] and B [n, R] are matrices of the whole buffer, of which every
// group contracts its own columns; D_g begins g * m * n elements after D, and an empty group leaves zeros, or what was there to accumulate.
// An unquantised operand may be `transposed`: A [R, m] and B [R, n] in `contraction`, B_g [k, n] in `rows`.
//
// Scales as in Product with one set a group: `tensor` and `outer` are [groups], `row` of A in `rows` is [R], of any other operand
// [groups, its rows]; block128 and tile128 are those of the whole matrix (of B_g: g * b.scale_stride floats after `scale`), and so are the
// bytes of macro blocks (of B_g without gaps from group to group).
enum class Ragged { rows, contraction };

struct GroupedOperand : ProductOperand {
  int64_t stride = 0;        // of B in `rows`: elements from group to group
  int64_t scale_stride = 0;  // likewise, of its block128 and tile128 scales
};

struct GroupedProduct {
  Ragged ragged = Ragged::rows;
  RowGroups groups;
  int64_t rows = 0;             // R, a multiple of kGroupRows
  int64_t m = 0, n = 0, k = 0;  // of one group; the ragged one is 0
  GroupedOperand a, b;
  void* d = nullptr;  // contiguous
  DType d_type = DType::bf16;
  bool accumulate = false;  // `contraction` only: add to what D holds
  float alpha = 1;
  bool fast_accumulation = false;  // as in Product
  void* workspace = nullptr;       // device memory of this call alone, 256-byte aligned
  int64_t workspace_bytes = 0;
};

}  // namespace halftone::gemm
