#pragma once
#include <utility>
#include <vector>

#include "halftone/nn/layers.h"

namespace halftone::nn {

// Causal attention with low-rank projections of queries, keys and values (DeepSeek-V2, arXiv 2405.04434, section 2.1): wq, or wq_a,
// q_norm and wq_b; wkv_a, whose last columns are the rotated part of all keys, kv_norm and wkv_b; wo.
class LatentAttention : public Module {
 public:
  struct Shape {
    int64_t dim, heads;
    int64_t q_lora_rank;  // 0: queries are projected from the input directly
    int64_t kv_lora_rank;
    int64_t qk_nope_dim, qk_rope_dim, v_dim;  // per head: unrotated part of queries and keys, rotated part, values
    double norm_eps;
    double scale_factor = 1;  // multiplies the scores, in addition to (nope + rope)^-0.5
    bool rotate_halves = false;
    int64_t qk_dim() const { return qk_nope_dim + qk_rope_dim; }
  };
  LatentAttention(const Shape& shape, int layer, Init in, Init out);
  std::vector<std::string_view> class_names() const override { return {"LatentAttention", "Module"}; }
  // info.cos and info.sin cover qk_rope_dim elements.
  at::Tensor operator()(const Activation& x_td, const SequenceInfo& info);
  const Shape& shape() const { return shape_; }
  const std::vector<Linear*>& readers() const { return down_.linears(); }  // of its input
  Linear& output() { return wo_; }
  std::vector<NormUse> norm_uses();                   // for its own norms
  std::pair<int64_t, int64_t> cache_widths() const {  // elements per position in KvCache::k and v
    const int64_t heads = wkv_b_.out_features() / (shape_.qk_nope_dim + shape_.v_dim);
    return {heads * shape_.qk_dim(), heads * shape_.v_dim};
  }

 private:
  Shape shape_;
  int layer_;
  Linear& wq_;  // wq or wq_a
  RMSNorm* q_norm_;
  Linear *wq_b_, &wkv_a_;
  RMSNorm& kv_norm_;
  Linear &wkv_b_, &wo_;
  Siblings down_;
};

}  // namespace halftone::nn
