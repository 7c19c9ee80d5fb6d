#include "halftone/ops/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "halftone/attention/causal.h"
#include "halftone/fused/norm_rope.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/node.h"
#include "halftone/ops/saves.h"
#include "halftone/ops/weight.h"

namespace halftone {
namespace {

char* column(const at::Tensor& t, int64_t c) { return static_cast<char*>(t.data_ptr()) + c * t.element_size(); }

// Of `heads` heads in the first columns of `from`, into those of `to`. A weight: they are normalised, too.
Rope rotation(const at::Tensor& from, const at::Tensor& to, int64_t heads, const AttentionArgs& a, int64_t first_position) {
  Rope p;
  p.tokens = from.size(0), p.heads = heads, p.head_dim = a.head_dim, p.rotated = 2 * a.cos.size(1), p.dtype = kernel_dtype(from);
  p.x = from.const_data_ptr(), p.x_stride = from.stride(0);
  p.out = to.data_ptr(), p.out_stride = to.stride(0);
  p.cos = a.cos.const_data_ptr<float>(), p.sin = a.sin.const_data_ptr<float>(), p.max_positions = a.cos.size(0);
  if (a.positions.defined()) p.positions = a.positions.const_data_ptr<int32_t>();
  p.seq_len = a.seq, p.offset = first_position;
  p.pairing = a.rotate_halves ? RopePairing::halves : RopePairing::neighbours;
  return p;
}
NormRope normalisation(const Rope& rope, const Weight& weight, const AttentionArgs& a) {
  return {rope, weight.value.const_data_ptr(), static_cast<float>(a.norm_eps)};
}

// fused/rope.h and fused/norm_rope.h where `at` is.
void run(const Rope& p, c10::Device at) { at.is_cpu() ? rope(p) : cuda::launch("rope", &cuda::Module::rope, p, at); }
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

// q and k as attention reads them, in the first columns of what it returns: qkv itself, or where they are normalised, memory of their own,
// as backward needs them as they were.
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

// From gradients of what `rotated` returned, which may lie in d_qkv, to those of q and k there. Adds to those of the norms' weights.
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
  check(a.kv_heads > 0 && a.heads % a.kv_heads == 0, "attention: {} heads are not a multiple of {} key-value heads", a.heads, a.kv_heads);
}

AttentionShape shape_of(const AttentionArgs& a, int64_t keys) {
  return {a.batch, a.seq, keys, static_cast<int>(a.heads), static_cast<int>(a.kv_heads), static_cast<int>(a.head_dim), a.window};
}

aten::AttentionState forward_cpu(const at::Tensor& qk, const at::Tensor& qkv, const AttentionArgs& a) {
  const int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  aten::AttentionState s;
  s.out = at::empty({qkv.size(0), width}, qkv.options());
  s.lse = at::empty({a.batch, a.heads, a.seq}, qkv.options().dtype(at::kFloat));
  AttentionForward p;
  p.shape = shape_of(a, a.seq);
  p.dtype = kernel_dtype(qkv), p.scale = static_cast<float>(a.scale);
  p.q = column(qk, 0), p.k = column(qk, width), p.v = column(qkv, width + kv);
  p.q_layout.row = p.k_layout.row = qk.stride(0), p.v_layout.row = qkv.stride(0);
  p.out = s.out.data_ptr(), p.out_layout.row = width, p.lse = s.lse.mutable_data_ptr<float>();
  if (a.documents.start.defined()) p.doc_start = a.documents.start.const_data_ptr<int32_t>();
  causal_attention_forward(p);
  return s;
}

at::Tensor backward_cpu(const at::Tensor& d_out, const at::Tensor& qk, const at::Tensor& qkv, const aten::AttentionState& state,
                        const AttentionArgs& a) {
  const int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  at::Tensor d_qkv = at::empty_like(qkv);
  AttentionBackward p;
  p.shape = shape_of(a, a.seq);
  p.dtype = kernel_dtype(qkv), p.scale = static_cast<float>(a.scale);
  p.q = column(qk, 0), p.k = column(qk, width), p.v = column(qkv, width + kv);
  p.dq = column(d_qkv, 0), p.dk = column(d_qkv, width), p.dv = column(d_qkv, width + kv);
  p.q_layout.row = p.k_layout.row = qk.stride(0), p.v_layout.row = qkv.stride(0);
  p.dq_layout.row = p.dk_layout.row = p.dv_layout.row = d_qkv.stride(0);
  p.out = state.out.const_data_ptr(), p.d_out = d_out.const_data_ptr(), p.lse = state.lse.const_data_ptr<float>();
  p.out_layout.row = state.out.stride(0), p.d_out_layout.row = d_out.stride(0);
  if (a.documents.start.defined()) p.doc_start = a.documents.start.const_data_ptr<int32_t>();
  causal_attention_backward(p);
  rotated_backward(d_qkv, keys_of(d_qkv, a), qkv, d_qkv, a);
  return d_qkv;
}

// Rotated back on their way into the gradient of the joint projection.
at::Tensor backward_cuda(const at::Tensor& d_out, const at::Tensor& qkv, const aten::AttentionState& state, const AttentionArgs& a) {
  const int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const aten::AttentionGradients g = aten::attention_backward(d_out, state, a);
  at::Tensor d_qkv = at::empty({d_out.size(0), width + 2 * kv}, d_out.options());
  rotated_backward(g.q, g.k, qkv, d_qkv, a);
  d_qkv.narrow(1, width + kv, kv).copy_(g.v);
  return d_qkv;
}

}  // namespace

Documents documents_of(const at::Tensor& start, c10::Device device) {
  check(start.dim() == 2 && start.scalar_type() == at::kInt && start.is_cpu() && start.is_contiguous() && start.numel() > 0,
        "attention: expected the starts of documents as int32 [rows, places] in host memory, found {} of [{}] on {}",
        c10::toString(start.scalar_type()), fmt::join(start.sizes(), " x "), start.device().str());
  const int64_t places = start.size(1);
  const int32_t* s = start.const_data_ptr<int32_t>();
  std::vector<int32_t> offsets;
  for (int64_t t = 0; t < start.numel(); ++t) {
    const int64_t j = t % places;
    check(s[t] == j || (j > 0 && s[t] == s[t - 1]), "attention: place {} of row {} names {} as the start of its document; expected {}", j,
          t / places, s[t], j > 0 ? fmt::format("{} or, beginning one, {}", s[t - 1], j) : "0");
    if (s[t] == j) offsets.push_back(static_cast<int32_t>(t));
  }
  offsets.push_back(static_cast<int32_t>(start.numel()));
  Documents d;
  for (size_t i = 1; i < offsets.size(); ++i) d.longest = std::max<int64_t>(d.longest, offsets[i] - offsets[i - 1]);
  const at::Tensor host = at::empty({static_cast<int64_t>(offsets.size())}, start.options().pinned_memory(device.is_cuda()));
  std::copy(offsets.begin(), offsets.end(), host.mutable_data_ptr<int32_t>());
  d.start = start.view(-1).to(device, true), d.offsets = host.to(device, true);
  return d;
}

Activation causal_attention(const at::Tensor& qkv, const AttentionArgs& args, Saves* saves) {
  check_args(qkv, args, args.seq);
  const at::Tensor plain = qkv.detach();
  Activation result;
  at::Tensor& out = result.value;
  std::vector<at::Tensor> inputs = {qkv};
  if (args.q_norm != nullptr) inputs.insert(inputs.end(), {args.q_norm->value, args.k_norm->value});
  const bool recording = records(inputs);
  OpNode::Backward backward;
  {
    at::NoGradGuard no_grad;
    const at::Tensor qk = rotated(plain, args);
    const auto compute = [&] {
      return plain.is_cpu() ? forward_cpu(qk, plain, args) : aten::attention(qk, plain, args, recording || saves);
    };
    const auto state = std::make_shared<aten::AttentionState>(saves ? saves->attention(compute) : compute());
    out = state->out.detach();
    result.kept = recording && (plain.is_cpu() || state->attended.is_alias_of(out));
    if (!plain.is_cpu()) {
      if (recording) aten::set_inputs(*state, qk, plain, args);
      state->out = at::Tensor();
    }
    backward = [qk, plain, state, args, count = inputs.size()](const variable_list& g) {
      const at::Tensor d_out = g[0].contiguous();
      variable_list gradients(count);  // those of the weights are added by now
      gradients[0] = plain.is_cpu() ? backward_cpu(d_out, qk, plain, *state, args) : backward_cuda(d_out, plain, *state, args);
      return gradients;
    };
  }
  if (recording) connect("causal_attention", inputs, {&out}, std::move(backward));
  return result;
}

at::Tensor causal_attention_cached(const at::Tensor& qkv, const AttentionArgs& args, KvCache& cache) {
  at::NoGradGuard no_grad;
  check_args(qkv, args, args.seq);
  const int64_t d = args.head_dim, width = args.heads * d, kv = args.kv_heads * d, total = cache.length + args.seq;
  check(total <= cache.k.size(1), "generate: {} positions do not fit a cache of {}", total, cache.k.size(1));
  const at::Tensor plain = qkv.detach(), qk = rotated(plain, args, cache.length);
  cache.k.narrow(1, cache.length, args.seq).copy_(keys_of(qk, args).view({args.batch, args.seq, kv}));
  cache.v.narrow(1, cache.length, args.seq).copy_(plain.narrow(1, width + kv, kv).view({args.batch, args.seq, kv}));
  cache.length = total;
  // Keys before the window of the first query are not read.
  const int64_t seen = args.window > 0 ? std::min(total, args.seq + args.window - 1) : total;
  const at::Tensor keys = cache.k.narrow(1, total - seen, seen), values = cache.v.narrow(1, total - seen, seen);
  if (plain.is_cpu()) {
    at::Tensor out = at::empty({plain.size(0), width}, plain.options());
    AttentionForward p;
    p.shape = shape_of(args, seen);
    p.dtype = kernel_dtype(plain), p.scale = static_cast<float>(args.scale);
    p.q = qk.const_data_ptr(), p.k = keys.const_data_ptr(), p.v = values.const_data_ptr(), p.out = out.data_ptr();
    p.q_layout.row = qk.stride(0), p.out_layout.row = width;
    p.k_layout = p.v_layout = {kv, keys.stride(0)};
    causal_attention_forward(p);
    return out;
  }
  const auto heads = [&](const at::Tensor& t, int64_t n) {
    return t.reshape({args.batch, t.numel() / (args.batch * n * d), n, d}).transpose(1, 2);
  };
  return aten::attention_cached(heads(qk.narrow(1, 0, width), args.heads), heads(keys, args.kv_heads), heads(values, args.kv_heads), args);
}

}  // namespace halftone
