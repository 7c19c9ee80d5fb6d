#pragma once
#include <deque>
#include <functional>

#include "halftone/ops/aten.h"

namespace halftone {

// What the first forward pass of a block hands to the one that its backward pass makes (activation_checkpoint, op): the results of
// attention and of every second product, counted by weights in the order of the program. Whatever else the block does is done again.
class Saves {
 public:
  // From here on the second pass, which takes what the first one kept.
  void begin_again() { again_ = true, products_ = 0; }
  // Fills y, by `compute` or with what was kept.
  void product(const at::Tensor& y, const std::function<void()>& compute);
  aten::AttentionState attention(const std::function<aten::AttentionState()>& compute);  // q, k, v undefined where it was kept
  // The block's own output needs no numbers in the second pass: where a product wrote it, that one is neither kept nor done again.
  void drop(const at::Tensor& output);

 private:
  bool again_ = false;
  int64_t products_ = 0;
  std::deque<at::Tensor> kept_;
  std::deque<aten::AttentionState> attention_;
};

}  // namespace halftone
