#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "halftone/ops/attention.h"

namespace halftone {

// Sizes of a training step's activations on this rank, for alarms (docs/metrics.md). Only read() synchronizes with the device.
class ActivationStats {
 public:
  // The residual stream [T, D] after a block; rows of zeros are padding and do not count.
  void residual(const std::string& layer, const at::Tensor& x_td);
  // The projections that attention reads, before it changes them: qkv as in causal_attention, or as in latent_attention.
  void attention(const std::string& layer, const at::Tensor& qkv, const AttentionArgs& args);
  void latent_attention(const std::string& layer, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rope,
                        const AttentionArgs& args);

  struct Figure {
    bool logit;  // else a residual norm
    std::string layer;
    double value;  // RMS of the stream; largest |scale| max |q| max |k| of a head in a row, which no logit exceeds. NaN if one is NaN
  };
  // One figure for a layer and kind, in forward order, over all micro-batches.
  std::vector<Figure> read() const;

 private:
  struct Sums {
    bool logit;
    std::string layer;
    at::Tensor values;  // fp64 [2]: sum of squares and number of elements, or the bound and 1
  };
  void add(bool logit, const std::string& layer, const at::Tensor& values);
  void add_bound(const std::string& layer, const at::Tensor& q_h, const at::Tensor& k_h, const AttentionArgs& args);
  std::vector<Sums> all_;
};

// The instance that watches the current step; null if there is none.
std::shared_ptr<ActivationStats>& activation_stats();

}  // namespace halftone
