#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/base/row_groups.h"

// Dispatch of tokens to experts and combine (numerics.md section 8, platform.md 4.7): T tokens are routed to k experts each; the rows of an
// expert are contiguous in a buffer of R = most_group_rows(T * k, E) rows.
namespace halftone {

// Computes the row of every routed token; rows of a group are in token order.
struct PlaceExperts {
  int64_t tokens = 0, top_k = 0, experts = 0, rows = 0;  // rows: R
  const int32_t* expert = nullptr;                       // [T, k], each in [0, experts)
  int32_t* counts = nullptr;                             // [experts]
  int32_t* offsets = nullptr;                            // [experts + 1], as in RowGroups
  int32_t* ends = nullptr;                               // [experts]
  int32_t* slot = nullptr;                               // [T, k]: assigned row
  int32_t* source = nullptr;                             // [R]: t * k + j of the routed token in this row, -1 for padding
  // [R / kGroupRows]: row tiles sorted by their first token, then the tiles after all groups. Reading in this order processes the experts'
  // rows of neighbouring tokens together, while these are in L2.
  int32_t* order = nullptr;
};
void place_experts(const PlaceExperts& p);

// rows[r] = x[source[r] / k] * weight[source[r]], zeros for padding; weight null: 1. With `other` [R, cols] also computes the row dot
// products dots[source[r]] = <x[source[r] / k], other[r]> in fp32. This is the combine's backward pass: with x = dY and other = its rows,
// it gives the gradients of rows and weights.
struct GatherRows {
  int64_t rows = 0, cols = 0, top_k = 0;
  DType dtype = DType::bf16;  // dtype of x, out and other
  const int32_t* source = nullptr;
  const int32_t* order = nullptr;  // [R / kGroupRows] or null: read order on a GPU
  const float* weight = nullptr;   // [T * k] or null
  const void* x = nullptr;         // [T, cols]
  void* out = nullptr;             // [R, cols], null: dots only
  const void* other = nullptr;     // [R, cols] or null
  float* dots = nullptr;           // [T * k], requires `other`
};
void gather_rows(const GatherRows& p);

// out[t] = sum over j of weight[t, j] * (rows + more)[slot[t, j]], in fp32 in the order of j, rounded once; weight null: 1, more null: 0.
struct CombineRows {
  int64_t tokens = 0, cols = 0, top_k = 0;
  DType dtype = DType::bf16;  // dtype of rows and out
  const int32_t* slot = nullptr;
  const float* weight = nullptr;  // [T, k] or null
  const void* rows = nullptr;     // [R, cols]
  const void* more = nullptr;     // [R, cols] or null
  void* out = nullptr;            // [T, cols]
};
void combine_rows(const CombineRows& p);

// rows[r] += bias[g] for the rows r of group g; padding stays zero. Rounded once.
struct GroupBias {
  RowGroups groups;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;
  DType bias_dtype = DType::f32;
  const void* bias = nullptr;  // [groups, cols]
  void* x = nullptr;           // [rows, cols]
};
void group_bias(const GroupBias& p);

// sums[g] += sum of the rows of group g, in fp32 in row order: the gradient of its bias.
struct GroupSums {
  RowGroups groups;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;
  const void* x = nullptr;  // [rows, cols]
  float* sums = nullptr;    // [groups, cols]
};
void group_sums(const GroupSums& p);

inline constexpr float kClampedSlope = 1.702f;
// GPT-OSS activation: for columns (2j, 2j + 1) = (g, u) of gu,
//   h[j] = g' * sigmoid(kClampedSlope g') * (u' + 1),  g' = min(g, limit), u' = clamp(u, -limit, limit).
struct ClampedSwiglu {
  int64_t rows = 0, cols = 0;  // cols: columns of h
  DType dtype = DType::bf16;
  float limit = 7;
  const void* gu = nullptr;  // [rows, 2 * cols]
  void* h = nullptr;         // [rows, cols]
};
void clamped_swiglu(const ClampedSwiglu& p);

struct ClampedSwigluBackward {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;
  float limit = 7;
  const void* gu = nullptr;  // [rows, 2 * cols]
  const void* dh = nullptr;  // [rows, cols]
  void* dgu = nullptr;       // [rows, 2 * cols]; may be gu
};
void clamped_swiglu_backward(const ClampedSwigluBackward& p);

}  // namespace halftone
