#include "halftone/ops/attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "halftone/fused/norm_rope.h"
#include "halftone/ops/attention_core.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/recompute_results.h"
#include "halftone/ops/weight.h"

namespace halftone {
namespace {

NormRope normalisation(const Rope& rope, const Weight& weight, const AttentionArgs& a) {
  return {rope, weight.value.const_data_ptr(), static_cast<float>(a.norm_eps)};
}

// fused/norm_rope.h on the device `at`.
void run(const NormRope& p, c10::Device at) { at.is_cpu() ? norm_rope(p) : cuda::launch("norm_rope", &cuda::Module::norm_rope, p, at); }
void run(const NormRopeBackward& p, c10::Device at) {
  if (at.is_cpu()) return norm_rope_backward(p);
  const cuda::Module& m = cuda::required_module();
  const at::Tensor partial =
      at::empty({p.dw != nullptr ? m.norm_rope_partial(p.norm.rope.head_dim) : 0}, at::TensorOptions().dtype(at::kFloat).device(at));
  cuda::check_launch("norm_rope", m.norm_rope_backward(&p, partial.mutable_data_ptr<float>(), cuda::current_stream(at)));
}

// The columns of k.
at::Tensor keys_of(const at::Tensor& qkv, const AttentionArgs& a) { return qkv.narrow(1, a.heads * a.head_dim, a.kv_heads * a.head_dim); }

// q and k as attention reads them, in the first columns of the result: qkv itself, or separate memory if they are normalised, because
// backward needs the unnormalised values.
at::Tensor rotated(const at::Tensor& qkv, const AttentionArgs& a, int64_t first_position = 0) {
  const auto device = qkv.device();
  if (a.q_norm == nullptr) {
    run(rotation(qkv, qkv, a.heads + a.kv_heads, a, first_position), device);
    return qkv;
  }
  const at::Tensor qk = at::empty({qkv.size(0), (a.heads + a.kv_heads) * a.head_dim}, qkv.options());
  run(normalisation(rotation(qkv, qk, a.heads, a, first_position), *a.q_norm, a), device);
  run(normalisation(rotation(keys_of(qkv, a), keys_of(qk, a), a.kv_heads, a, first_position), *a.k_norm, a), device);
  return qk;
}

// From the gradients of the output of `rotated`, which may be views of d_qkv, to those of its q and k. Accumulates the norm weights'
// gradients.
void rotated_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& qkv, const at::Tensor& d_qkv, const AttentionArgs& a) {
  const auto back = [&](const at::Tensor& from, const at::Tensor& to, int64_t heads, const at::Tensor& x, Weight* weight) {
    Rope p = rotation(from, to, heads, a, 0);
    p.inverse = true;
    if (weight == nullptr) return run(p, from.device());
    run(NormRopeBackward{normalisation(p, *weight, a), x.const_data_ptr(), x.stride(0),
                         weight->trainable() ? weight->grad_to_add().mutable_data_ptr<float>() : nullptr},
        from.device());
    weight->grad_ready();
  };
  back(dq, d_qkv, a.heads, qkv, a.q_norm);
  back(dk, keys_of(d_qkv, a), a.kv_heads, keys_of(qkv, a), a.k_norm);
}

void check_args(const at::Tensor& qkv, const AttentionArgs& a, int64_t seq) {
  check(qkv.dim() == 2 && qkv.size(0) == a.batch * seq && qkv.size(1) == (a.heads + 2 * a.kv_heads) * a.head_dim,
        "attention: expected qkv of [{} * {}, ({} + 2 * {}) * {}], found {}", a.batch, seq, a.heads, a.kv_heads, a.head_dim,
        fmt::join(qkv.sizes(), " x "));
  check((a.q_norm == nullptr) == (a.k_norm == nullptr), "attention: expected weights of norms for both q and k, or for none");
  for (const Weight* w : {a.q_norm, a.k_norm}) {
    if (w == nullptr) continue;
    check(w->value.numel() == a.head_dim && w->value.scalar_type() == qkv.scalar_type(),
          "{}: expected a weight of [{}] in {}, found one of [{}] in {}", w->name, a.head_dim, c10::toString(qkv.scalar_type()),
          fmt::join(w->value.sizes(), " x "), c10::toString(w->value.scalar_type()));
  }
  check_sinks(a);
  check(a.v_dim == 0 || a.v_dim == a.head_dim, "attention: expected value heads of {} as keys have, found {}", a.head_dim, a.v_dim);
  check(a.kv_heads > 0 && a.heads % a.kv_heads == 0, "attention: {} heads are not a multiple of {} key-value heads", a.heads, a.kv_heads);
}

struct Heads {
  at::Tensor q, k, v;  // [B, S, heads, d], views
};
// q and k are the first columns of qk, v the last ones of qkv.
Heads heads_in(const at::Tensor& qk, const at::Tensor& qkv, const AttentionArgs& a) {
  return {as_heads(qk, a, a.heads, a.head_dim), as_heads(keys_of(qk, a), a, a.kv_heads, a.head_dim),
          as_heads(qkv.narrow(1, (a.heads + a.kv_heads) * a.head_dim, a.kv_heads * a.head_dim), a, a.kv_heads, a.head_dim)};
}

// Gradients are un-rotated as they are written into d_qkv; on the CPU attention writes them there.
at::Tensor causal_backward(const at::Tensor& d_out, const at::Tensor& qkv, const aten::AttentionState& state, const AttentionArgs& a) {
  at::Tensor d_qkv;
  aten::AttentionGradients g;
  const auto make_room = [&] {
    d_qkv = at::empty(qkv.sizes(), qkv.options());
    return heads_in(d_qkv, d_qkv, a);
  };
  if (qkv.is_cpu()) {
    const Heads room = make_room();
    g = attend_backward(d_out, state, a, {room.q, room.k, room.v});
  } else {
    g = attend_backward(d_out, state, a, {});
    make_room().v.copy_(g.v);
  }
  rotated_backward(as_rows(g.q), as_rows(g.k), qkv, d_qkv, a);
  return d_qkv;
}

}  // namespace

Documents documents_of(const at::Tensor& start, c10::Device device) {
  check(start.dim() == 2 && start.scalar_type() == at::kInt && start.is_cpu() && start.is_contiguous() && start.numel() > 0,
        "attention: expected the starts of documents as int32 [rows, positions] in host memory, found {} of [{}] on {}",
        c10::toString(start.scalar_type()), fmt::join(start.sizes(), " x "), start.device().str());
  const int64_t places = start.size(1);
  const int32_t* s = start.const_data_ptr<int32_t>();
  std::vector<int32_t> offsets;
  for (int64_t t = 0; t < start.numel(); ++t) {
    const int64_t j = t % places;
    check(s[t] == j || (j > 0 && s[t] == s[t - 1]), "attention: position {} of row {} names {} as the start of its document; expected {}",
          j, t / places, s[t], j > 0 ? fmt::format("{} or, beginning one, {}", s[t - 1], j) : "0");
    if (s[t] == j) offsets.push_back(static_cast<int32_t>(t));
  }
  offsets.push_back(static_cast<int32_t>(start.numel()));
  Documents d;
  for (size_t i = 1; i < offsets.size(); ++i) d.longest = std::max<int64_t>(d.longest, offsets[i] - offsets[i - 1]);
  const at::Tensor host = at::empty({static_cast<int64_t>(offsets.size())}, start.options().pinned_memory(device.is_cuda()));
  std::copy(offsets.begin(), offsets.end(), host.mutable_data_ptr<int32_t>());
  d.start = start.view(-1).to(device, true), d.offsets = host.to(device, true), d.host_start = start;
  return d;
}

Activation causal_attention(const at::Tensor& qkv, const AttentionArgs& args, RecomputeResults* results) {
  check_args(qkv, args, args.seq);
  const at::Tensor plain = qkv.detach();
  Activation result;
  at::Tensor& out = result.value;
  std::vector<at::Tensor> inputs = {qkv};
  if (args.q_norm != nullptr) inputs.insert(inputs.end(), {args.q_norm->value, args.k_norm->value});
  if (args.sinks != nullptr) inputs.push_back(args.sinks->value);
  const bool recording = records(inputs);
  AutogradNode::Backward backward;
  {
    at::NoGradGuard no_grad;
    const at::Tensor qk = rotated(plain, args);
    const Heads in = heads_in(qk, plain, args);
    const auto compute = [&] { return attend(in.q, in.k, in.v, args, recording || results); };
    const auto state = std::make_shared<aten::AttentionState>(results ? results->attention(compute) : compute());
    out = state->out.detach();
    result.kept = recording && state->attended.is_alias_of(out);
    state->out = at::Tensor();
    if (recording) state->q = in.q, state->k = in.k, state->v = in.v;
    backward = [plain, state, args, count = inputs.size()](const variable_list& g) {
      variable_list gradients(count);  // gradients of weights are already accumulated
      gradients[0] = causal_backward(g[0].contiguous(), plain, *state, args);
      return gradients;
    };
  }
  if (recording) connect("causal_attention", inputs, {&out}, std::move(backward));
  return result;
}

at::Tensor causal_attention_cached(const at::Tensor& qkv, const AttentionArgs& args, KvCache& cache) {
  at::NoGradGuard no_grad;
  check_args(qkv, args, args.seq);
  const at::Tensor plain = qkv.detach(), qk = rotated(plain, args, cache.length);
  const Heads in = heads_in(qk, plain, args);
  return attend_cached(in.q, in.k, in.v, args, cache);
}

}  // namespace halftone
