#pragma once
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <utility>
#include <vector>

#include "halftone/nn/model.h"

namespace halftone::nn {

// Who keeps a model's weights elsewhere between their uses. Units by their place: 0 is the embedding, then come the blocks, and last the
// head, which may read the embedding's weights, too.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual void before_forward(int64_t unit) = 0;   // its weights are read from here on; `unit` + 1 comes next
  virtual void before_backward(int64_t unit) = 0;  // likewise, and its gradients are added to; `unit` - 1 comes next
  virtual void after_backward(int64_t unit) = 0;   // its gradients of this pass are complete
};

// What a stage of a pipeline has of a model's units: [first, end), counted as above, and what the unit before them wrote, x + branch.
struct PassPart {
  int64_t first = 0, end = -1;  // -1: to the last
  at::Tensor in{};
};

// One micro-batch's way through a model's units, or some of them: embedding, blocks, head. No autograd graph reaches across a unit: the
// forward pass detaches what each one reads and keeps the two ends of its graph, the backward pass walks the units in reverse. Numbers are
// kept where an op saved them, and what a block reads where it is recomputed. What happens between units (to recompute a block, to gather
// or free its weights, to send its output on) is thereby a plain call here, and the passes of several micro-batches may interleave.
class Pass {
 public:
  // The forward pass; `keep`: what backward() needs. The loss is that of ops/head_loss.h. `access` null: all weights are there.
  Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep, UnitAccess* access = nullptr,
       PassPart part = {});
  const at::Tensor& loss_sum() const { return loss_sum_; }             // fp64 scalar on the device: nats over the valid labels
  at::Tensor take_out() { return std::exchange(out_, at::Tensor()); }  // x + branch of the last unit, unless that is the head; once
  // Adds to the gradients of the weights; once. Of a part: from the gradient of take_out(), to that of what it was given. `later`: those
  // that products form, which nobody waits for, are left to weight_gradients().
  at::Tensor backward(const at::Tensor& d_out = {}, bool later = false);
  void weight_gradients();

 private:
  // Where the gradients of what a unit wrote go into its graph, and where those of what it read come out. A unit that is recomputed has
  // no graph yet, and instead what it reads and the results that it will not compute again.
  struct Unit {
    Stream in;
    std::shared_ptr<Saves> saves;
    std::vector<torch::autograd::Edge> begin, end;
  };
  Stream forward(int64_t unit, const Stream& in, const at::Tensor& tokens);
  void head(const Stream& in, const at::Tensor& labels, double grad_scale);
  Stream recomputed_block(int64_t block, const Unit& unit, bool first) const;  // its first pass, or its second one
  bool recomputed(int64_t unit) const { return keep_ && unit > 0 && model_.recompute(unit - 1) != Recompute::none; }

  void tell(void (UnitAccess::*what)(int64_t), int64_t unit) const {
    if (access_ != nullptr) (access_->*what)(unit);
  }

  Model& model_;
  UnitAccess* access_;
  const bool keep_;
  const int64_t first_, end_;
  SequenceInfo info_;
  std::vector<Unit> units_;                               // but the head
  std::vector<std::vector<std::function<void()>>> left_;  // of each of them, until weight_gradients()
  Stream d_;                                              // of what the head read: it goes back at once
  at::Tensor loss_sum_, out_;
};

}  // namespace halftone::nn
