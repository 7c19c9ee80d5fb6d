#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "halftone/comm/communicator.h"
#include "halftone/ops/linear.h"

namespace halftone {

// The logits that this process makes of those of a vocabulary that it shares with others; all of them without `ranks`.
struct VocabularyPart {
  comm::Communicator* ranks = nullptr;
  int64_t first = 0, whole = 0;
  bool stays = true;  // they stay where they are, and reductions make the loss; else each process gathers all
};

// What turns rows into logits: one product, or more than that (nn::Linear's low-rank side).
struct Head {
  std::function<LinearCall(const at::Tensor& x_tk, const LinearOptions&)> call;
  std::vector<Weight*> weights;  // everything that the call adds gradients to
  int64_t out_features = 0;
  VocabularyPart part{};
};
Head head_of(FusedLinears& fused);

// dtype of the logits of an input in dtype x, and the rows of them that exist at once.
at::ScalarType logits_type(at::ScalarType x, bool cpu);
int64_t logits_rows(at::ScalarType x, bool cpu, int64_t vocab);

struct HeadLoss {
  at::Tensor loss;  // fp32 scalar on the device: grad_scale * grad_factor * sum; root of the backward pass
  at::Tensor sum;   // fp64 scalar on the device: sum of cross-entropies (nats) over the valid labels
};

// LM head and cross-entropy on chunks of rows, so that logits[T, V] never exist at once: x[T, K], labels int64 [T], -100
// ignored. While a graph is recorded the gradients are formed in the same pass: dX is kept, dW is added to the weight's
// gradient at once, so `loss` must be differentiated with gradient 1. grad_factor: fp64 scalar where x is, or undefined for 1.
// Where processes share the vocabulary, all have the same rows and labels, and the first of them alone has a `sum` that is not zero.
// z_loss: the gradients are those of the losses plus z_loss * logsumexp(logits)^2 of every valid label; what is returned has no such term.
HeadLoss head_loss(const at::Tensor& x_tk, const Head& head, const at::Tensor& labels_t, double grad_scale, const StepContext& step,
                   const at::Tensor& grad_factor = {}, double z_loss = 0);

}  // namespace halftone
