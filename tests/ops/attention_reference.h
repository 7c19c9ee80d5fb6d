#pragma once
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "halftone/ops/attention.h"
#include "halftone/ops/rope_table.h"
#include "halftone/ops/weight.h"
#include "ops/test_device.h"

// Attention by definition in fp64, and its tests' problems.
namespace halftone {

inline double relative(const at::Tensor& reference, const at::Tensor& x) {
  const at::Tensor r = reference.to(at::kCPU, at::kDouble);
  return ((r - x.to(at::kCPU, at::kDouble)).norm() / r.norm()).item<double>();
}

// Documents of one token, shorter and longer than a tile; the last row is one document.
inline Documents packed(int64_t rows, int64_t places) {
  at::Tensor start = at::zeros({rows, places}, at::kInt);
  for (int64_t b = 0; b + 1 < rows; ++b) {
    for (const int64_t begin : {int64_t{1}, int64_t{2}, int64_t{66}, places - 1}) {
      if (begin < places) start[b].narrow(0, begin, places - begin).fill_(begin);
    }
  }
  return documents_of(start, test_device());
}

// rotated 0: full heads.
inline AttentionArgs args_of(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, bool documents,
                             int64_t window = 0, int64_t rotated = 0) {
  AttentionArgs a;
  a.batch = batch, a.seq = seq, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim, a.scale = 1.0 / std::sqrt(head_dim);
  std::tie(a.cos, a.sin) = rope_tables(seq, rotated > 0 ? rotated : head_dim, 10000, {}, test_device());
  if (documents) a.documents = packed(batch, seq);
  a.window = window;
  return a;
}

inline at::Tensor random(int64_t rows, int64_t cols, at::ScalarType type = at::kBFloat16) {
  return at::randn({rows, cols}).to(test_device(), type);
}

// Its gradient accumulates onto existing values.
inline Weight make_weight(const at::Tensor& value) {
  Weight w;
  w.name = "w", w.value = value.detach().set_requires_grad(true), w.grad = at::zeros(value.sizes(), value.options().dtype(at::kFloat));
  return w;
}

struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

// Sink logits that matter with few and with many keys.
inline Weight make_sinks(int64_t heads, at::ScalarType type) { return make_weight((at::randn({heads}) * 2 + 1).to(test_device(), type)); }

struct Result {
  at::Tensor out, d_qkv, d_q_norm, d_k_norm, d_sinks;
};

inline at::Tensor leaf_of(const at::Tensor& t) { return t.to(at::kDouble).detach().clone().set_requires_grad(true); }

// x [B, S, heads, d], leading elements rotated by position.
inline at::Tensor rotate_reference(const at::Tensor& x, const AttentionArgs& a) {
  const int64_t half = a.cos.size(1);
  const auto at_places = [&](const at::Tensor& t) { return t.narrow(0, 0, a.seq).to(x.scalar_type()).reshape({1, a.seq, 1, half}); };
  const at::Tensor c = at_places(a.cos), s = at_places(a.sin), part = x.narrow(3, 0, 2 * half);
  const at::Tensor pairs = a.rotate_halves ? part.unflatten(3, {2, half}).transpose(3, 4) : part.unflatten(3, {half, 2});
  const at::Tensor first = pairs.select(4, 0), second = pairs.select(4, 1);
  const at::Tensor turned = at::stack({first * c - second * s, first * s + second * c}, a.rotate_halves ? 3 : 4).flatten(3);
  return at::cat({turned, x.narrow(3, 2 * half, x.size(3) - 2 * half)}, 3);
}

// The definition for q [B, S, H, d], k [B, S, Hkv, d] and v [B, S, Hkv, dv] as attention reads them; sinks [H] or undefined. [T, H * dv].
inline at::Tensor attend_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a,
                                   const at::Tensor& sinks) {
  const auto turned = [&](const at::Tensor& t) { return t.transpose(1, 2).repeat_interleave(a.heads / t.size(2), 1); };
  const at::Tensor key = at::arange(a.seq, q.options().dtype(at::kLong)), query = key.unsqueeze(1);
  at::Tensor hidden = (key > query).reshape({1, 1, a.seq, a.seq});
  if (a.window > 0) hidden = hidden.logical_or(key < query - a.window + 1);
  if (a.documents.start.defined()) hidden = hidden.logical_or(key < a.documents.start.to(at::kLong).reshape({a.batch, 1, a.seq, 1}));
  at::Tensor scores = at::matmul(turned(q), turned(k).transpose(2, 3)) * a.scale;
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (sinks.defined()) scores = at::cat({scores, sinks.reshape({1, a.heads, 1, 1}).expand({a.batch, a.heads, a.seq, 1})}, 3);
  const at::Tensor p = at::softmax(scores, -1).narrow(3, 0, a.seq);
  return at::matmul(p, turned(v)).transpose(1, 2).reshape({a.batch * a.seq, a.heads * v.size(3)});
}

// Gradients by LibTorch. `whole`: with norms and rotation, as causal_attention; otherwise q and k are used as given.
inline Result reference(const at::Tensor& qkv, const at::Tensor& d_out, const AttentionArgs& a, bool whole) {
  at::AutoGradMode grad(true);
  const at::Tensor leaf = leaf_of(qkv);
  int64_t column = 0;
  const auto next = [&](int64_t heads, int64_t dim, const at::Tensor& norm, bool rotate) {
    at::Tensor part = leaf.narrow(1, column, heads * dim).reshape({a.batch, a.seq, heads, dim});
    column += heads * dim;
    if (norm.defined()) part = part * at::rsqrt(part.square().mean(3, true) + a.norm_eps) * norm;
    return rotate ? rotate_reference(part, a) : part;
  };
  const at::Tensor none, q_norm = whole && a.q_norm ? leaf_of(a.q_norm->value) : none;
  const at::Tensor k_norm = whole && a.k_norm ? leaf_of(a.k_norm->value) : none;
  const at::Tensor sinks = a.sinks != nullptr ? leaf_of(a.sinks->value) : none;
  const at::Tensor q = next(a.heads, a.head_dim, q_norm, whole), k = next(a.kv_heads, a.head_dim, k_norm, whole);
  const at::Tensor out = attend_reference(q, k, next(a.kv_heads, a.v_dim > 0 ? a.v_dim : a.head_dim, none, false), a, sinks);
  torch::autograd::backward({out}, {d_out.to(at::kDouble)});
  const auto grad_of = [](const at::Tensor& t) { return t.defined() ? t.grad() : t; };
  return {out.detach(), leaf.grad(), grad_of(q_norm), grad_of(k_norm), grad_of(sinks)};
}

// causal_attention and its gradients; those of weights are in a.
inline Result run_op(const at::Tensor& qkv, const at::Tensor& d_out, const AttentionArgs& a, RecomputeResults* results = nullptr) {
  at::AutoGradMode grad(true);
  const at::Tensor leaf = qkv.detach().clone().set_requires_grad(true);
  const at::Tensor out = causal_attention(leaf * 1.0, a, results);
  torch::autograd::backward({out}, {d_out});
  return {out.detach(), leaf.grad(), {}, {}, {}};
}

}  // namespace halftone
