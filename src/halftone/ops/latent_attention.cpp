#include "halftone/ops/latent_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "halftone/ops/attention_core.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/recompute_results.h"
#include "halftone/ops/weight.h"

namespace halftone {
namespace {

int64_t rope_of(const AttentionArgs& a) { return 2 * a.cos.size(1); }
int64_t nope_of(const AttentionArgs& a) { return a.head_dim - rope_of(a); }

// Rotates the last elements of every head of q or its gradient, in place.
void rotate_queries(const at::Tensor& q, const AttentionArgs& a, int64_t first_position, bool inverse) {
  const at::Tensor from = q.narrow(1, nope_of(a), a.heads * a.head_dim - nope_of(a));
  Rope p = rotation(from, from, a.heads, a, first_position);
  p.inverse = inverse;
  run(p, q.device());
}

void rotate_shared(const at::Tensor& from, const at::Tensor& to, const AttentionArgs& a, int64_t first_position, bool inverse) {
  Rope p = rotation(from, to, 1, a, first_position);
  p.head_dim = rope_of(a), p.inverse = inverse;
  run(p, from.device());
}

at::Tensor rotated_shared(const at::Tensor& k_rope, const AttentionArgs& a, int64_t first_position) {
  const at::Tensor out = at::empty({k_rope.size(0), rope_of(a)}, k_rope.options());
  rotate_shared(k_rope, out, a, first_position, false);
  return out;
}

at::Tensor queries_in(const at::Tensor& q, const AttentionArgs& a) { return as_heads(q, a, a.heads, a.head_dim); }

// Views of kv or its gradient.
at::Tensor plain_keys_in(const at::Tensor& kv, const AttentionArgs& a) {
  return as_heads(kv, a, a.heads, nope_of(a) + a.v_dim).narrow(3, 0, nope_of(a));
}
at::Tensor values_in(const at::Tensor& kv, const AttentionArgs& a) {
  return as_heads(kv, a, a.heads, nope_of(a) + a.v_dim).narrow(3, nope_of(a), a.v_dim);
}

// Full keys [B, S, H, nope + rope] in new memory; shared: the rotated part.
at::Tensor keys_of(const at::Tensor& kv, const at::Tensor& shared, const AttentionArgs& a) {
  const at::Tensor k = at::empty({a.batch, a.seq, a.heads, a.head_dim}, kv.options());
  k.narrow(3, 0, nope_of(a)).copy_(plain_keys_in(kv, a));
  k.narrow(3, nope_of(a), rope_of(a)).copy_(as_heads(shared, a, 1, rope_of(a)));
  return k;
}

void check_args(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rope, const AttentionArgs& a) {
  check(
      nope_of(a) >= 0 && a.v_dim > 0 && a.kv_heads == a.heads && a.heads > 0,
      "latent attention: expected as many heads of keys as of queries, {} rotated elements of each and values, found {} and {} heads of {} "
      "and {} elements",
      rope_of(a), a.heads, a.kv_heads, a.head_dim, a.v_dim);
  check(a.q_norm == nullptr && a.k_norm == nullptr, "latent attention: expected no norms of heads");
  const auto check_rows = [&](const char* name, const at::Tensor& t, int64_t columns) {
    check(t.dim() == 2 && t.size(0) == a.batch * a.seq && t.size(1) == columns && t.stride(1) == 1 && t.scalar_type() == q.scalar_type(),
          "latent attention: expected {} of [{} * {}, {}] in {} with rows of adjacent elements, found [{}] in {}", name, a.batch, a.seq,
          columns, c10::toString(q.scalar_type()), fmt::join(t.sizes(), " x "), c10::toString(t.scalar_type()));
  };
  check_rows("q", q, a.heads * a.head_dim);
  check_rows("kv", kv, a.heads * (nope_of(a) + a.v_dim));
  check_rows("k_rope", k_rope, rope_of(a));
  check_sinks(a);
}

struct LatentGradients {
  at::Tensor q, kv, k_rope;
};

// shared: the rotated part of the keys. Rebuilds the keys: a copy costs less than keeping them.
LatentGradients latent_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& shared,
                                aten::AttentionState s, const AttentionArgs& a) {
  s.q = queries_in(q, a), s.k = keys_of(kv, shared, a), s.v = values_in(kv, a);
  LatentGradients d;
  aten::AttentionGradients g;
  const auto make_kv = [&] { d.kv = at::empty(kv.sizes(), kv.options()); };
  if (q.is_cpu()) {
    d.q = at::empty(q.sizes(), q.options()), make_kv();
    g = attend_backward(d_out, s, a, {queries_in(d.q, a), at::empty(s.k.sizes(), s.k.options()), values_in(d.kv, a)});
  } else {
    g = attend_backward(d_out, s, a, {});
    d.q = as_rows(g.q), make_kv();
    values_in(d.kv, a).copy_(g.v);
  }
  rotate_queries(d.q, a, 0, true);
  plain_keys_in(d.kv, a).copy_(g.k.narrow(3, 0, nope_of(a)));
  const at::Tensor sum = g.k.narrow(3, nope_of(a), rope_of(a)).sum({2}, false, at::kFloat).view({-1, rope_of(a)});
  rotate_shared(sum, sum, a, 0, true);
  d.k_rope = sum.to(q.scalar_type());
  return d;
}

}  // namespace

Activation latent_attention(const at::Tensor& q_in, const at::Tensor& kv_in, const at::Tensor& k_rope, const AttentionArgs& args,
                            RecomputeResults* results) {
  check_args(q_in, kv_in, k_rope, args);
  std::vector<at::Tensor> inputs = {q_in, kv_in, k_rope};
  if (args.sinks != nullptr) inputs.push_back(args.sinks->value);
  const bool recording = records(inputs);
  Activation result;
  at::Tensor& out = result.value;
  AutogradNode::Backward backward;
  {
    at::NoGradGuard no_grad;
    const at::Tensor q = results != nullptr && !recording ? q_in.detach().clone() : q_in.detach(), kv = kv_in.detach();
    rotate_queries(q, args, 0, false);
    const at::Tensor shared = rotated_shared(k_rope.detach(), args, 0);
    const auto compute = [&] {
      return attend(queries_in(q, args), keys_of(kv, shared, args), values_in(kv, args), args, recording || results);
    };
    const auto state = std::make_shared<aten::AttentionState>(results ? results->attention(compute) : compute());
    out = state->out.detach();
    result.kept = recording && state->attended.is_alias_of(out);
    state->out = state->q = state->k = state->v = at::Tensor();
    backward = [q, kv, shared, state, args, count = inputs.size()](const variable_list& g) {
      const LatentGradients d = latent_backward(g[0].contiguous(), q, kv, shared, *state, args);
      variable_list gradients = {d.q, d.kv, d.k_rope};
      gradients.resize(count);  // gradients of the sinks are already accumulated
      return gradients;
    };
  }
  if (recording) connect("latent_attention", inputs, {&out}, std::move(backward));
  return result;
}

at::Tensor latent_attention_cached(const at::Tensor& q_in, const at::Tensor& kv_in, const at::Tensor& k_rope, const AttentionArgs& args,
                                   KvCache& cache) {
  at::NoGradGuard no_grad;
  check_args(q_in, kv_in, k_rope, args);
  const at::Tensor q = q_in.detach(), kv = kv_in.detach();
  rotate_queries(q, args, cache.length, false);
  const at::Tensor shared = rotated_shared(k_rope.detach(), args, cache.length);
  return attend_cached(queries_in(q, args), keys_of(kv, shared, args), values_in(kv, args), args, cache);
}

}  // namespace halftone
