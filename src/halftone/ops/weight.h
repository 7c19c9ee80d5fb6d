#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "halftone/formats/recipe.h"

namespace halftone {

class RecomputeResults;
struct RowScores;

// A weight that exists in quantised form only (int8_weight, int4_weight; numerics.md section 7), or that is multiplied in the form of a
// Hugging Face folder (train/stored_products.h).
struct StoredWeight {
  OperandSpec spec;
  at::Tensor codes;          // bytes [N, K], or uint4 packed two a byte [N, K / 2]
  at::Tensor scales, zeros;  // of a run fp32: [N], or [N, K / 32] with one zero point each; else scales as Operand has them
  at::Tensor outer{};        // as Operand::outer
};

// Flat fp32 gradient memory of one unit of parameters. It is freed, with every view of it, when its contents are no longer needed, and
// reallocated at the unit's first gradient of the next step. So little of it exists while all activations do.
class GradientBuffer {
 public:
  explicit GradientBuffer(at::Tensor zeros) : flat_(std::move(zeros)) {}
  const at::Tensor& flat() const { return flat_; }
  // Elements that belong to no parameter: zeroed at every allocation.
  void add_gap(int64_t first, int64_t count) { gaps_.emplace_back(first, count); }
  void hold();     // allocates if needed, with undefined contents
  void release();  // until hold(), LibTorch throws an error on any read or write

 private:
  at::Tensor flat_;
  std::vector<std::pair<int64_t, int64_t>> gaps_;
};

// A parameter as the ops see it. Ops read `value`, and in backward accumulate the gradient in `grad` themselves (the GEMM accumulates),
// then call `on_grad_ready`; autograd never carries a weight gradient.
struct Weight {
  std::string name;                      // fully qualified, e.g. "layers.0.attention.wq.weight"; part of every random-number key
  at::Tensor value;                      // compute dtype; a leaf that requires grad, so that autograd records even if the input does not
  at::Tensor grad;                       // fp32, same shape; undefined for a frozen parameter
  int64_t first_row = 0;                 // row offset of this weight within its parameter (an expert's), for random draws
  uint64_t version = 1;                  // incremented whenever `value` changes: key of packed and quantised copies
  std::shared_ptr<StoredWeight> stored;  // if set, `value` has the shape and dtype but no data
  std::vector<std::shared_ptr<StoredWeight>> stored_experts;  // of experts [E, N, K]: the codes that products read; empty: `value`
  at::Tensor master;                      // fp32; if set, `value` has no data either: the weight is this, rounded to bf16
  GradientBuffer* grad_buffer = nullptr;  // owner of `grad`'s memory; null: the memory is never freed
  bool grad_is_stale = false;             // `grad` holds an earlier step's gradient: a GEMM may overwrite it
  std::function<void(Weight&)> on_grad_ready;

  bool trainable() const { return grad.defined(); }
  // The gradient for ops that add to it: zeroed if it was stale.
  at::Tensor& grad_to_add() {
    if (grad_is_stale) grad_to_write().zero_();
    return grad;
  }
  // For ops that overwrite all of it.
  at::Tensor& grad_to_write() {
    if (grad_buffer != nullptr) grad_buffer->hold();
    grad_is_stale = false;
    return grad;
  }
  void grad_ready() {
    grad_to_add();
    if (on_grad_ready) on_grad_ready(*this);
  }
};

// Weight gradients that a backward pass defers, so that the consumer of the input gradient need not wait for them.
struct WeightGradients {
  bool later = false;  // false: they are computed at once
  std::vector<std::function<void()>> left;
  void form(std::function<void()> work) { later ? left.push_back(std::move(work)) : work(); }
};

// Position of a forward pass and its backward in the run: the counters of every random draw (numerics.md section 4), so that draws depend
// neither on micro-batching nor on the number of ranks. Passed by value with the call: micro-batches may interleave.
struct StepContext {
  uint64_t seed = 0;
  uint32_t step = 0;
  int64_t first_row = 0;  // index of this micro-batch's first token row in the step's global batch
  // Device memory that also holds `step` while its owner keeps it allocated: a graph capture reads the step from it at every replay.
  // Null: a capture with random draws is an error.
  const uint32_t* device_step = nullptr;
  // No later pass of the step reads the weights: a GPU frees their quantised copies once a GEMM has read them.
  bool last_pass = false;
  // For a block that backward recomputes and that keeps some results for it (ops/recompute_results.h); otherwise null.
  std::shared_ptr<RecomputeResults> recompute_results{};
  std::shared_ptr<WeightGradients> gradients{};  // null: all are computed at once
  // The loss by group of rows: int64 [T] in [0, groups), and fp64 [2, groups], to which losses (nats) and their numbers are added.
  at::Tensor loss_groups{}, group_sums{};
  std::shared_ptr<RowScores> scores{};  // of an evaluation, filled by the head (ops/head_loss.h); null: not wanted

  void form_gradients(std::function<void()> work) const { gradients ? gradients->form(std::move(work)) : work(); }
};

}  // namespace halftone
