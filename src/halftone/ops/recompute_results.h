#pragma once
#include <deque>
#include <functional>

#include "halftone/ops/aten.h"

namespace halftone {

// Results that the first forward pass of a block keeps for its recomputation in backward (activation_checkpoint, op): those of attention
// and of every second GEMM, counted by weights in program order. Everything else is recomputed.
class RecomputeResults {
 public:
  // Starts the recomputation, which reuses the kept results.
  void begin_again() { again_ = true, products_ = 0; }
  // Fills y by `compute`, or with the kept result.
  void product(const at::Tensor& y, const std::function<void()>& compute);
  aten::AttentionState attention(const std::function<aten::AttentionState()>& compute);  // q, k, v are undefined if the result was kept
  // The recomputation does not need the values of the block's output: the GEMM that wrote it is neither kept nor rerun.
  void drop(const at::Tensor& output);

 private:
  bool again_ = false;
  int64_t products_ = 0;
  std::deque<at::Tensor> kept_;
  std::deque<aten::AttentionState> attention_;
};

}  // namespace halftone
