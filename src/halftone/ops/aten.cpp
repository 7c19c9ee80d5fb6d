#include "halftone/ops/aten.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace halftone::aten {
namespace {

at::Tensor slice_columns(const at::Tensor& t, int64_t begin, int64_t size) { return t.narrow(1, begin, size); }

// [B * S, heads * d] -> [B, heads, S, d]
at::Tensor split_heads(const at::Tensor& t, int64_t batch, int64_t heads, int64_t d) {
  return t.reshape({batch, t.size(0) / batch, heads, d}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& t) { return t.transpose(1, 2).reshape({t.size(0) * t.size(2), t.size(1) * t.size(3)}); }

// Scores with hidden positions at -inf.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args) {
  const int64_t lq = q.size(2), lk = k.size(2), group = q.size(1) / k.size(1);
  at::Tensor scores = at::matmul(q.to(at::kFloat), k.to(at::kFloat).repeat_interleave(group, 1).transpose(2, 3)) * args.scale;
  const auto options = q.options().dtype(at::kLong);
  const at::Tensor qi = at::arange(lq, options).unsqueeze(1) + (lk - lq), kj = at::arange(lk, options).unsqueeze(0);
  at::Tensor hidden = (kj > qi).unsqueeze(0).unsqueeze(0);
  if (args.doc_start.defined()) {
    const at::Tensor start = args.doc_start.reshape({q.size(0), 1, lk, 1}).to(at::kLong).narrow(2, lk - lq, lq);
    hidden = hidden.logical_or(kj < start);
  }
  return scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
}

}  // namespace

AttentionState attention(const at::Tensor& qkv, const AttentionArgs& args, bool keep) {
  const int64_t d = args.head_dim, nq = args.heads * d, nk = args.kv_heads * d, group = args.heads / args.kv_heads;
  AttentionState s;
  s.q = split_heads(slice_columns(qkv, 0, nq), args.batch, args.heads, d);
  s.k = split_heads(slice_columns(qkv, nq, nk), args.batch, args.kv_heads, d);
  s.v = split_heads(slice_columns(qkv, nq + nk, nk), args.batch, args.kv_heads, d);
  s.flash = qkv.is_cuda() && qkv.scalar_type() == at::kBFloat16 && !args.doc_start.defined() && d <= 256;
  if (s.flash) {
    if (group > 1) s.k = s.k.repeat_interleave(group, 1), s.v = s.v.repeat_interleave(group, 1);
    const auto r = at::_scaled_dot_product_flash_attention(s.q, s.k, s.v, 0.0, true, false, args.scale);
    s.flash_out = std::get<0>(r), s.lse = std::get<1>(r);
    s.max_q = std::get<4>(r).expect_int(), s.max_k = std::get<5>(r).expect_int();
    s.seed = std::get<6>(r), s.offset = std::get<7>(r);
    s.out = merge_heads(s.flash_out);
  } else {
    const at::Tensor p = at::softmax(masked_scores(s.q, s.k, args), -1);
    s.flash_out = at::matmul(p, s.v.to(at::kFloat).repeat_interleave(group, 1)).to(qkv.scalar_type());
    s.out = merge_heads(s.flash_out);
  }
  if (!keep) s.q = s.k = s.v = s.flash_out = at::Tensor();
  return s;
}

at::Tensor attention_backward(const at::Tensor& d_out, const AttentionState& s, const AttentionArgs& args) {
  const int64_t d = args.head_dim, group = args.heads / args.kv_heads;
  const at::Tensor grad = split_heads(d_out, args.batch, args.heads, d);
  at::Tensor dq, dk, dv;
  if (s.flash) {
    std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
        grad, s.q, s.k, s.v, s.flash_out, s.lse, at::Tensor(), at::Tensor(), s.max_q, s.max_k, 0.0, true, s.seed, s.offset, args.scale);
  } else {
    const at::Tensor p = at::softmax(masked_scores(s.q, s.k, args), -1), g = grad.to(at::kFloat);
    dv = at::matmul(p.transpose(2, 3), g);
    const at::Tensor dp = at::matmul(g, s.v.to(at::kFloat).repeat_interleave(group, 1).transpose(2, 3));
    const at::Tensor ds = p * (dp - (g * s.flash_out.to(at::kFloat)).sum(-1, true)) * args.scale;
    dq = at::matmul(ds, s.k.to(at::kFloat).repeat_interleave(group, 1));
    dk = at::matmul(ds.transpose(2, 3), s.q.to(at::kFloat));
  }
  // Copied straight into their columns of the gradient of the joint projection.
  const at::Tensor d_qkv = at::empty({d_out.size(0), (args.heads + 2 * args.kv_heads) * d}, d_out.options());
  int64_t column = 0;
  const auto put = [&](const at::Tensor& part, int64_t heads) {
    const at::Tensor to = d_qkv.narrow(1, column, heads * d).view({args.batch, d_out.size(0) / args.batch, heads, d}).transpose(1, 2);
    column += heads * d;
    if (heads == part.size(1)) {
      to.copy_(part);
    } else {
      to.copy_(part.reshape({args.batch, heads, group, part.size(2), d}).to(at::kFloat).sum(2));
    }
  };
  put(dq, args.heads), put(dk, args.kv_heads), put(dv, args.kv_heads);
  return d_qkv;
}

at::Tensor attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) {
  const at::Tensor p = at::softmax(masked_scores(q, k, args), -1);
  return merge_heads(at::matmul(p, v.to(at::kFloat).repeat_interleave(q.size(1) / v.size(1), 1)).to(q.scalar_type()));
}

}  // namespace halftone::aten
