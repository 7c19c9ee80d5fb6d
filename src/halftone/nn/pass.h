#pragma once
#include <vector>

#include "halftone/nn/model.h"

namespace halftone::nn {

// One micro-batch's way through a model's units: embedding, blocks, head. No autograd graph reaches across a unit: the forward pass
// detaches what each one reads and keeps it beside what it wrote, the backward pass walks the units in reverse. What happens between
// units (to recompute a block, to gather or free its weights, to send its output on) is thereby a plain call here, and the passes of
// several micro-batches may interleave.
class Pass {
 public:
  // The forward pass; `keep`: what backward() needs. The loss is that of ops/head_loss.h.
  Pass(Model& model, const ModelInput& input, const at::Tensor& labels, double grad_scale, bool keep);
  const at::Tensor& loss_sum() const { return loss_.sum; }  // fp64 scalar on the device: nats over the valid labels
  // Adds to the gradients of the weights; once.
  void backward();

 private:
  struct Unit {
    Stream in, out;  // out is undefined where the unit is recomputed
  };
  bool recomputed(int64_t block) const { return block < model_.blocks() && model_.recompute().covers(static_cast<int>(block)); }

  Model& model_;
  SequenceInfo info_;
  Stream embedded_;
  std::vector<Unit> blocks_;
  Stream head_in_;
  HeadLoss loss_;
};

}  // namespace halftone::nn
