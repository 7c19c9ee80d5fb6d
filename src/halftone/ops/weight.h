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

class Saves;

// A weight that exists in quantised form only (int8_weight, int4_weight; numerics.md section 7).
struct StoredWeight {
  OperandSpec spec;
  at::Tensor codes;          // int8 [N, K], or uint4 packed two a byte [N, K / 2]
  at::Tensor scales, zeros;  // fp32: [N], or [N, K / 32] with a zero point each
};

// Memory of the gradients of one unit of parameters, fp32, flat. It may go when nobody needs what they hold, with every view of it; it
// comes back with the unit's first gradient of the next step. So little of it is there while all activations are.
class GradientBuffer {
 public:
  explicit GradientBuffer(at::Tensor zeros) : flat_(std::move(zeros)) {}
  const at::Tensor& flat() const { return flat_; }
  // Elements that belong to no parameter: zeros whenever memory comes.
  void add_gap(int64_t first, int64_t count) { gaps_.emplace_back(first, count); }
  void hold();     // contents are undefined where there was none
  void release();  // until hold() reading or writing is an error of LibTorch

 private:
  at::Tensor flat_;
  std::vector<std::pair<int64_t, int64_t>> gaps_;
};

// A parameter as the ops see it. Ops read `value`, and in backward add the parameter's gradient to `grad` themselves
// (the product accumulates), then call `on_grad_ready`; autograd never carries a weight gradient.
struct Weight {
  std::string name;                       // fully qualified, e.g. "layers.0.attention.wq.weight"; part of every random-number key
  at::Tensor value;                       // compute dtype; a leaf that requires grad, so that a graph exists even if the input needs none
  at::Tensor grad;                        // fp32, same shape; undefined for a frozen parameter
  int64_t first_row = 0;                  // of the rows of one parameter, by which draws are counted: an expert's
  uint64_t version = 1;                   // raised whenever `value` changes: key of packed and quantized copies
  std::shared_ptr<StoredWeight> stored;   // where set, `value` has the shape and dtype but no contents
  at::Tensor master;                      // fp32; where set, likewise: the weight's numbers are these, rounded to bf16
  GradientBuffer* grad_buffer = nullptr;  // of `grad`; null: it is always there
  bool grad_is_stale = false;             // what `grad` holds is of an earlier step: a product may write over it
  std::function<void(Weight&)> on_grad_ready;

  bool trainable() const { return grad.defined(); }
  // The gradient for those that add to it: zeros where it was stale.
  at::Tensor& grad_to_add() {
    if (grad_is_stale) grad_to_write().zero_();
    return grad;
  }
  // For those that write all of it.
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

// Gradients of weights that a backward pass leaves for later, so that whoever waits for those of its input need not wait for them.
struct WeightGradients {
  bool later = false;  // else they are formed at once
  std::vector<std::function<void()>> left;
  void form(std::function<void()> work) { later ? left.push_back(std::move(work)) : work(); }
};

// Where a forward pass and its backward stand in the run: the counters of every random draw (numerics.md section 4), so
// that draws depend neither on micro-batching nor on the number of processes. It goes with the call, by value: micro-batches may
// interleave.
struct StepContext {
  uint64_t seed = 0;
  uint32_t step = 0;
  int64_t first_row = 0;  // index of this micro-batch's first token row in the step's global batch
  // Device memory that holds `step` too, for as long as its owner keeps it there: what a graph capture queues reads the step from
  // it in every replay. Null: such a capture of random draws is an error.
  const uint32_t* device_step = nullptr;
  // No later pass of the step reads the weights: on a GPU their quantised copies go when a product has read them.
  bool last_pass = false;
  // Of a block that the backward pass computes again and that keeps some results for it (ops/saves.h); else null.
  std::shared_ptr<Saves> saves{};
  std::shared_ptr<WeightGradients> gradients{};  // null: all are formed at once

  void form_gradients(std::function<void()> work) const { gradients ? gradients->form(std::move(work)) : work(); }
};

}  // namespace halftone
