#include "halftone/train/step_graph.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <exception>
#include <string>

#include "halftone/base/log.h"
#include "halftone/ops/activation_stats.h"
#include "halftone/ops/quantization_stats.h"

namespace halftone {
namespace {

constexpr int kStepsBefore = 2;           // warm-up steps, which select algorithms and load kernels
constexpr size_t kMostMicroBatches = 16;  // capturing more takes too long
// Queueing a block's passes takes 1 to 1.6 ms of a core; a GPU of 400 TFLOP/s finishes that much work in 2.5 ms. (Llama 120M on an H100:
// docs/benchmarks/training_step.md.)
constexpr double kWorkOfBlock = 1e12;

void refill(const at::Tensor& from, const at::Tensor& to) {
  if (from.defined()) to.copy_(from);
}

}  // namespace

bool StepGraph::run(std::span<const MicroBatch> batches, double factor, const Passes& passes) {
  if (!wanted_ || batches.size() > kMostMicroBatches) return false;
  std::vector<int64_t> shape;
  for (const MicroBatch& b : batches) {
    if (b.input.documents.start.defined()) return false;
    const double work = 6.0 * static_cast<double>(block_parameters_) * static_cast<double>(b.input.tokens.numel());
    if (work > kWorkOfBlock) return false;
    shape.insert(shape.end(),
                 {b.input.tokens.size(0), b.input.tokens.size(1), b.input.positions.defined(), b.input.padding.defined(), b.first_row});
  }
  if (quantization_stats() || activation_stats() || torch::profiler::impl::profilerEnabled()) return false;
  if (shape != shape_) drop(), shape_ = shape;
  if (++steps_ <= kStepsBefore) return false;
  if (!graph_ && !capture(batches, passes)) return false;
  for (size_t i = 0; i < batches.size(); ++i) {
    refill(batches[i].input.tokens, inputs_[i].input.tokens), refill(batches[i].labels, inputs_[i].labels);
    refill(batches[i].input.positions, inputs_[i].input.positions), refill(batches[i].input.padding, inputs_[i].input.padding);
    refill(batches[i].sources, inputs_[i].sources);
  }
  factor_.fill_(factor);
  graph_->replay();
  return true;
}

bool StepGraph::capture(std::span<const MicroBatch> batches, const Passes& passes) {
  factor_ = at::empty({}, at::TensorOptions().device(device_).dtype(at::kDouble));
  inputs_.assign(batches.begin(), batches.end());
  for (MicroBatch& b : inputs_) {
    b.input.tokens = b.input.tokens.clone(), b.labels = b.labels.clone();
    for (at::Tensor* t : {&b.input.positions, &b.input.padding, &b.sources})
      if (t->defined()) *t = t->clone();
  }
  try {
    graph_ = std::make_unique<Graph>(device_, [&] { passes(inputs_, factor_); });
    log_info("replaying steps as a CUDA graph from here on (training.disable_cuda_graphs turns this off)");
    return true;
  } catch (const std::exception& e) {
    const std::string what = e.what();
    log_warning("launching kernels one by one: a step cannot be captured as a CUDA graph: {}", what.substr(0, what.find('\n')));
    wanted_ = false;
    return false;
  }
}

}  // namespace halftone
