#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "halftone/ops/linear.h"

namespace halftone {

// The columns of the logits that this process computes where others compute the rest; all of them without `gather`.
struct LogitColumns {
  std::function<at::Tensor(const at::Tensor&)> gather{};  // [...] of every process -> [processes, ...]
  int64_t first = 0, most = 0, whole = 0;                 // this process's first column, the most of a process, the number of all
  bool stay = true;                                       // log-sum-exp and label logit are gathered; false: all logits are
  bool adds_loss = true;                                  // false: another process returns the sum of the losses
};

// Maps rows to logits: one GEMM, or more (nn::Linear with its low-rank side).
struct Head {
  std::function<LinearCall(const at::Tensor& x_tk, const LinearOptions&)> call;
  std::vector<Weight*> weights;  // all weights whose gradients the call accumulates
  int64_t out_features = 0;
  LogitColumns columns{};
};
Head head_of(FusedLinears& fused);

// dtype of the logits for an input of dtype x, and the number of their rows that exist at once.
at::ScalarType logits_type(at::ScalarType x, bool cpu);
int64_t logits_rows(at::ScalarType x, bool cpu, int64_t vocab);

struct HeadLoss {
  at::Tensor loss;  // fp32 scalar on the device: grad_scale * grad_factor * sum; root of the backward pass
  at::Tensor sum;   // fp64 scalar on the device: sum of cross-entropies (nats) over the valid labels
};

// Results for every row of the head in a pass without gradients: set the wishes, read the tensors after the pass. They are on the device;
// with split columns every process has all of them.
struct RowScores {
  bool greedy = false;               // wish for `best`
  int64_t top = 0;                   // wish for so many likeliest columns, and the label's rank
  at::Tensor loss;                   // fp32 [T]: nats; 0 for ignored labels
  at::Tensor best;                   // int64 [T]: the column of the largest logit
  at::Tensor top_logprobs, top_ids;  // fp32, int64 [T, top], descending
  at::Tensor rank;                   // int64 [T]: 1 + the number of larger logits than the label's
  bool wants_logits() const { return greedy || top > 0; }
};

// LM head and cross-entropy in chunks of rows, so that logits[T, V] are never materialized: x[T, K], labels int64 [T], -100 ignored.
// While autograd records, the gradients are computed in the same pass: dX is kept, dW is accumulated in the weight's gradient at once, so
// `loss` must be differentiated with gradient 1. grad_factor: fp64 scalar on x's device, or undefined for 1.
// Processes that compute different columns have the same rows and labels, and one of them returns a nonzero `sum`.
// z_loss: the gradients include z_loss * logsumexp(logits)^2 of every valid label; the returned losses do not.
HeadLoss head_loss(const at::Tensor& x_tk, const Head& head, const at::Tensor& labels_t, double grad_scale, const StepContext& step,
                   const at::Tensor& grad_factor = {}, double z_loss = 0);

// The logits that head_loss computes, fp32 [T, V], without autograd: for a GPU rounded to x's dtype first. Every process gets all columns.
at::Tensor head_logits(const at::Tensor& x_tk, const Head& head, const StepContext& step);

}  // namespace halftone
