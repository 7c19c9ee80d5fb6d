#pragma once
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <utility>
#include <vector>

#include "halftone/nn/model.h"

namespace halftone::nn {

// Hooks for an owner that keeps a model's weights elsewhere between uses. Units by position: 0 is the embedding, then the blocks, last
// the head, which may read the embedding's weights too.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual void before_forward(int64_t unit) = 0;   // its weights are read from here on; `unit` + 1 is next
  virtual void before_backward(int64_t unit) = 0;  // the same, and gradients are accumulated; `unit` - 1 is next
  virtual void after_backward(int64_t unit) = 0;   // its gradients of this pass are complete
};

// A pipeline stage's range of a model's units: [first, end), positions as above, and the output of the unit before them, x + branch.
struct PassPart {
  int64_t first = 0, end = -1;  // -1: through the last
  at::Tensor in{};
};

// Runs one micro-batch through all or some of a model's units: embedding, blocks, head. No autograd graph spans two units: the forward
// pass detaches each unit's input and keeps both ends of its graph, and backward walks the units in reverse. Tensors are kept where an op
// saved them, plus the input of recomputed blocks. Work between units (recomputing a block, gathering or freeing its weights, sending its
// output) is therefore a plain call here, and the passes of several micro-batches may interleave.
class Pass {
 public:
  // The forward pass; `keep`: keep what backward() needs. The loss is that of ops/head_loss.h. `access` null: all weights are in memory.
  Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep, UnitAccess* access = nullptr,
       PassPart part = {});
  const at::Tensor& loss_sum() const { return loss_sum_; }             // fp64 scalar on the device: nats over the valid labels
  at::Tensor take_out() { return std::exchange(out_, at::Tensor()); }  // x + branch of the last unit, unless that is the head; call once
  // Accumulates the weight gradients; call once. For a part of the model: takes the gradient of take_out() and returns that of its input.
  // `later`: defers the weight gradients that GEMMs compute to weight_gradients().
  at::Tensor backward(const at::Tensor& d_out = {}, bool later = false);
  void weight_gradients();

 private:
  // Ends of a unit's graph: its output, where gradients enter, and its input, where they leave. A recomputed unit has no graph yet; it
  // keeps its input and the results that it will not recompute.
  struct Unit {
    Stream in;
    std::shared_ptr<RecomputeResults> results;
    std::vector<torch::autograd::Edge> begin, end;
  };
  Stream forward(int64_t unit, const Stream& in, const at::Tensor& tokens);
  void head(const Stream& in, const at::Tensor& labels, double grad_scale);
  Stream recomputed_block(int64_t block, const Unit& unit, bool first) const;  // its first pass, or its recomputation
  bool recomputed(int64_t unit) const { return keep_ && unit > 0 && model_.recompute(unit - 1) != Recompute::none; }

  void tell(void (UnitAccess::*what)(int64_t), int64_t unit) const {
    if (access_ != nullptr) (access_->*what)(unit);
  }

  Model& model_;
  UnitAccess* access_;
  const bool keep_;
  const int64_t first_, end_;
  SequenceInfo info_;
  std::vector<Unit> units_;                               // without the head
  std::vector<std::vector<std::function<void()>>> left_;  // deferred work per unit, until weight_gradients()
  Stream d_;                                              // gradient of the head's input, used immediately in backward
  at::Tensor loss_sum_, out_;
};

}  // namespace halftone::nn
