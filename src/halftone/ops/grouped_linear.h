#pragma once
#include <memory>
#include <vector>

#include "halftone/base/row_groups.h"
#include "halftone/ops/linear.h"
#include "halftone/quantize/operand.h"

namespace halftone {

// The rows that a router assigns to each expert, in a buffer of R rows (base/row_groups.h), and the maps to and from tokens.
struct ExpertRows {
  int64_t tokens = 0, top_k = 0, experts = 0, rows = 0;  // rows: R
  at::Tensor offsets, ends, counts;                      // int32 [E + 1], [E], [E]
  at::Tensor slot, source, order;                        // int32 [T, k], [R], [R / kGroupRows] or undefined (fused/expert_rows.h)
  // Set if documents are isolated and results must not depend on other documents bit for bit (debug.deterministic): start of each token's
  // document, as in ops/attention.h. Unquantised products are then accumulated one document after another.
  at::Tensor documents{};
  int64_t tokens_in_row = 0;
  bool some_stay = false;  // as in place_experts

  RowGroups groups() const;
  RowSource from(const at::Tensor& gates) const;  // of gathered rows, times their gates if there are any
};
// From the chosen experts, int32 [T, k] on any device. `some_stay`: a choice equal to `experts` is no expert; it is not counted, and its
// row, behind all groups, is zeros.
ExpertRows place_experts(const at::Tensor& expert_tk, int64_t experts, bool some_stay = false);

// x[T, D] -> [R, D], zeros in padding rows.
at::Tensor gather_rows(const at::Tensor& x_td, const ExpertRows& rows);
// Its gradient: [R, D] -> [T, D], the sum of each token's rows.
at::Tensor sum_rows(const at::Tensor& rows_rd, const ExpertRows& rows);
// y[t] = sum over j of gates[t, j] * rows[slot[t, j]]; gates fp32 [T, k].
at::Tensor combine_rows(const at::Tensor& rows_rd, const at::Tensor& gates_tk, const ExpertRows& rows);
// x[R, N] + bias[E, N] of each row's expert, in place: x must have no other reader.
at::Tensor add_group_bias(const at::Tensor& x_rn, Weight& bias, const ExpertRows& rows);
// [R, 2F] -> [R, F] (fused/expert_rows.h).
at::Tensor clamped_swiglu(const at::Tensor& gu, double limit);

// Weights [E, N_i, K] of all experts that read the same rows under the same recipe. Operands, scales and random draws of each expert equal
// those of a dense layer with its weight (ops/linear.h); draws of rows are indexed by their position in the buffer.

// Y_i[R, N_i] for every weight: rows of expert e times W_i[e]^T, zeros in padding rows. Does not synchronize with the GPU.
std::vector<at::Tensor> grouped_linear(const at::Tensor& x_rk, FusedLinears& layer, const ExpertRows& rows, const StepContext& step);
// The same on gather_rows(x[T, K]); at most two weights. If all operands of the rows are quantised on a GPU, they are made directly from x,
// without materializing the gathered rows.
std::vector<at::Tensor> gathered_linear(const at::Tensor& x_tk, FusedLinears& layer, const ExpertRows& rows, const StepContext& step);
// combine_rows() of the output of its one weight, [T, N]; sum_rows() if the gates are undefined. Gradients come from dY[T, N].
at::Tensor combined_linear(const at::Tensor& x_rk, FusedLinears& layer, const ExpertRows& rows, const at::Tensor& gates_tk,
                           const StepContext& step);

// Rows of the buffer: x[R, N], or with `gathered` the rows of gather_rows(x[T, N]) times their gates, fp32 [T, k], if there are any.
// d_gates, fp32 [T, k] or undefined: receives the dot products of these rows, without gates, with other[R, N].
struct BufferRows {
  at::Tensor x;
  bool gathered = false;
  at::Tensor gates{}, other{}, d_gates{};
};

// Without autograd, as LinearCall.
struct GroupedCall {
  std::vector<at::Tensor> y;
  // dY_i of every weight -> tensors [R, K] that sum to dX: one, or one per weight. Unless dX is wanted, undefined or empty.
  std::function<std::vector<at::Tensor>(const std::vector<BufferRows>&, bool)> dgrad;
  std::function<void()> wgrad;
};
GroupedCall grouped_linear_call(const BufferRows& x, FusedLinears& layer, const ExpertRows& rows, const LinearOptions& options);

}  // namespace halftone
