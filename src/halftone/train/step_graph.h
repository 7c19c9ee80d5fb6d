#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "halftone/nn/model.h"
#include "halftone/ops/graph.h"

namespace halftone {

using nn::MicroBatch;

// Forward and backward passes of a step as one CUDA graph, for steps whose launches may take longer than their execution. Other steps run
// kernel by kernel: a new number or shape of micro-batches until it repeats in consecutive steps, packed documents, watched steps.
class StepGraph {
 public:
  // Forward and backward of these micro-batches; gradients of the loss are multiplied by the factor, fp64 on the device.
  using Passes = std::function<void(std::span<const MicroBatch>, const at::Tensor& factor)>;
  StepGraph(c10::Device device, bool wanted, int64_t block_parameters)
      : device_(device), wanted_(wanted && device.is_cuda()), block_parameters_(block_parameters) {}
  // Whether the graph ran; otherwise the caller does it. If not, it leaves no effect except stale gradients.
  bool run(std::span<const MicroBatch> batches, double factor, const Passes& passes);
  bool exists() const { return graph_ != nullptr; }
  void drop() { graph_.reset(), steps_ = 0; }

 private:
  bool capture(std::span<const MicroBatch> batches, const Passes& passes);

  c10::Device device_;
  bool wanted_;
  int64_t block_parameters_;
  std::vector<int64_t> shape_;  // of the latest steps
  int steps_ = 0;               // number of them
  std::vector<MicroBatch> inputs_;
  at::Tensor factor_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace halftone
