#include "halftone/nn/layers.h"

#include <ATen/ops/cat.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/ops/embedding.h"
#include "halftone/ops/norm.h"
#include "halftone/ops/swiglu.h"

namespace halftone::nn {

Linear::Linear(int64_t in, int64_t out, Init init) : weight(add_parameter("weight", {out, in}, init)) { group_.weights = {&weight.weight}; }

at::Tensor Linear::operator()(const at::Tensor& x) { return linear(x, group_); }

void Linear::tie(Parameter& owner) { group_.weights = {&owner.weight}; }

at::Tensor Siblings::operator()(const at::Tensor& x) {
  regroup();
  if (groups_.size() == 1) return linear(x, groups_[0]);
  std::vector<at::Tensor> parts;
  for (LinearGroup& group : groups_) parts.push_back(linear(x, group));
  return at::cat(parts, 1);
}

void Siblings::regroup() {
  if (!groups_.empty()) return;
  for (Linear* l : linears_) {
    if (groups_.empty() || groups_.back().recipe != l->recipe()) {
      groups_.emplace_back();
      groups_.back().recipe = l->recipe();
    }
    groups_.back().weights.push_back(&l->weight.weight);
  }
}

RMSNorm::RMSNorm(int64_t dim, double eps) : weight(add_parameter("weight", {dim}, {Init::Kind::ones})), eps_(eps) {}

std::pair<at::Tensor, at::Tensor> RMSNorm::operator()(const at::Tensor& x, const at::Tensor& branch) {
  return add_rms_norm(x, branch, weight.weight, eps_);
}

Embedding::Embedding(int64_t vocab, int64_t dim, Init init) : weight(add_parameter("weight", {vocab, dim}, init)) {}

at::Tensor Embedding::operator()(const at::Tensor& tokens, at::ScalarType dtype) {
  return embedding(tokens, weight.weight, c10::promoteTypes(dtype, weight.weight.value.scalar_type()));
}

Attention::Attention(const Shape& s, int layer, Init in, Init out)
    : shape_(s),
      layer_(layer),
      wq_(add<Linear>("wq", s.dim, s.heads * s.head_dim, in)),
      wk_(add<Linear>("wk", s.dim, s.kv_heads * s.head_dim, in)),
      wv_(add<Linear>("wv", s.dim, s.kv_heads * s.head_dim, in)),
      wo_(add<Linear>("wo", s.heads * s.head_dim, s.dim, out)),
      qkv_({&wq_, &wk_, &wv_}) {}

at::Tensor Attention::operator()(const at::Tensor& x, const SequenceInfo& info) {
  AttentionArgs args;
  args.batch = info.batch, args.seq = info.seq;
  args.heads = shape_.heads, args.kv_heads = shape_.kv_heads, args.head_dim = shape_.head_dim;
  args.scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  args.cos = info.cos, args.sin = info.sin, args.rotate_halves = shape_.rotate_halves;
  args.positions = info.positions, args.doc_start = info.doc_start;
  const at::Tensor qkv = qkv_(x);
  return wo_(info.caches ? causal_attention_cached(qkv, args, info.caches->at(layer_)) : causal_attention(qkv, args));
}

FeedForward::FeedForward(int64_t dim, int64_t hidden, Init in, Init out)
    : w1_(add<Linear>("w1", dim, hidden, in)),
      w3_(add<Linear>("w3", dim, hidden, out)),
      w2_(add<Linear>("w2", hidden, dim, out)),
      gate_up_({&w1_, &w3_}) {}

at::Tensor FeedForward::operator()(const at::Tensor& x) { return w2_(swiglu(gate_up_(x))); }

}  // namespace halftone::nn
