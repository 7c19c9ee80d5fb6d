#include "halftone/ops/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "halftone/attention/causal.h"
#include "halftone/fused/rope.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/node.h"
#include "halftone/ops/saves.h"

namespace halftone {
namespace {

char* column(const at::Tensor& t, int64_t c) { return static_cast<char*>(t.data_ptr()) + c * t.element_size(); }

// Rotates the first `heads` heads of every row into `to`.
void rotate(const at::Tensor& from, const at::Tensor& to, int64_t heads, const AttentionArgs& a, bool inverse, int64_t first_position = 0) {
  Rope p;
  p.tokens = from.size(0), p.heads = heads, p.head_dim = a.head_dim, p.dtype = kernel_dtype(from);
  p.x = from.const_data_ptr(), p.x_stride = from.stride(0);
  p.out = to.data_ptr(), p.out_stride = to.stride(0);
  p.cos = a.cos.const_data_ptr<float>(), p.sin = a.sin.const_data_ptr<float>(), p.max_positions = a.cos.size(0);
  if (a.positions.defined()) p.positions = a.positions.const_data_ptr<int32_t>();
  p.seq_len = a.seq, p.offset = first_position, p.inverse = inverse;
  p.pairing = a.rotate_halves ? RopePairing::halves : RopePairing::neighbours;
  if (from.is_cpu()) {
    rope(p);
  } else {
    cuda::launch("rope", &cuda::Module::rope, p, from.device());
  }
}

// q and k of qkv in place.
void rotate(const at::Tensor& qkv, const AttentionArgs& a, bool inverse, int64_t first_position = 0) {
  rotate(qkv, qkv, a.heads + a.kv_heads, a, inverse, first_position);
}

void check_args(const at::Tensor& qkv, const AttentionArgs& a, int64_t seq) {
  check(qkv.dim() == 2 && qkv.size(0) == a.batch * seq && qkv.size(1) == (a.heads + 2 * a.kv_heads) * a.head_dim,
        "attention: expected qkv of [{} * {}, ({} + 2 * {}) * {}], found {}", a.batch, seq, a.heads, a.kv_heads, a.head_dim,
        fmt::join(qkv.sizes(), " x "));
  check(a.kv_heads > 0 && a.heads % a.kv_heads == 0, "attention: {} heads are not a multiple of {} key-value heads", a.heads, a.kv_heads);
}

aten::AttentionState forward_cpu(const at::Tensor& qkv, const AttentionArgs& a) {
  const int64_t d = a.head_dim, width = a.heads * d, kv = a.kv_heads * d;
  aten::AttentionState s;
  s.out = at::empty({qkv.size(0), width}, qkv.options());
  s.lse = at::empty({a.batch, a.heads, a.seq}, qkv.options().dtype(at::kFloat));
  AttentionForward p;
  p.shape = {a.batch, a.seq, a.seq, static_cast<int>(a.heads), static_cast<int>(a.kv_heads), static_cast<int>(d)};
  p.dtype = kernel_dtype(qkv), p.scale = static_cast<float>(a.scale);
  p.q = column(qkv, 0), p.k = column(qkv, width), p.v = column(qkv, width + kv);
  p.q_layout.row = p.k_layout.row = p.v_layout.row = qkv.stride(0);
  p.out = s.out.data_ptr(), p.out_layout.row = width, p.lse = s.lse.mutable_data_ptr<float>();
  if (a.documents.start.defined()) p.doc_start = a.documents.start.const_data_ptr<int32_t>();
  causal_attention_forward(p);
  return s;
}

at::Tensor backward_cpu(const at::Tensor& d_out, const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionArgs& a) {
  const int64_t d = a.head_dim, width = a.heads * d, kv = a.kv_heads * d;
  at::Tensor d_qkv = at::empty_like(qkv);
  AttentionBackward p;
  p.shape = {a.batch, a.seq, a.seq, static_cast<int>(a.heads), static_cast<int>(a.kv_heads), static_cast<int>(d)};
  p.dtype = kernel_dtype(qkv), p.scale = static_cast<float>(a.scale);
  p.q = column(qkv, 0), p.k = column(qkv, width), p.v = column(qkv, width + kv);
  p.dq = column(d_qkv, 0), p.dk = column(d_qkv, width), p.dv = column(d_qkv, width + kv);
  p.q_layout.row = p.k_layout.row = p.v_layout.row = qkv.stride(0);
  p.dq_layout.row = p.dk_layout.row = p.dv_layout.row = d_qkv.stride(0);
  p.out = out.const_data_ptr(), p.d_out = d_out.const_data_ptr(), p.lse = lse.const_data_ptr<float>();
  p.out_layout.row = out.stride(0), p.d_out_layout.row = d_out.stride(0);
  if (a.documents.start.defined()) p.doc_start = a.documents.start.const_data_ptr<int32_t>();
  causal_attention_backward(p);
  rotate(d_qkv, a, true);
  return d_qkv;
}

// Rotated back on their way into the gradient of the joint projection.
at::Tensor backward_cuda(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& a) {
  const int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const aten::AttentionGradients g = aten::attention_backward(d_out, state, a);
  at::Tensor d_qkv = at::empty({d_out.size(0), width + 2 * kv}, d_out.options());
  rotate(g.q, d_qkv, a.heads, a, true);
  rotate(g.k, d_qkv.narrow(1, width, kv), a.kv_heads, a, true);
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
  const bool recording = records(qkv);
  OpNode::Backward backward;
  {
    at::NoGradGuard no_grad;
    rotate(plain, args, false);
    const auto compute = [&] { return plain.is_cpu() ? forward_cpu(plain, args) : aten::attention(plain, args, recording || saves); };
    const auto state = std::make_shared<aten::AttentionState>(saves ? saves->attention(compute) : compute());
    out = state->out.detach();
    result.kept = recording && (plain.is_cpu() || state->attended.is_alias_of(out));
    if (plain.is_cpu()) {
      backward = [plain, state, args](const variable_list& g) -> variable_list {
        return {backward_cpu(g[0].contiguous(), plain, state->out, state->lse, args)};
      };
    } else {
      if (recording) aten::set_inputs(*state, plain, args);
      state->out = at::Tensor();
      backward = [state, args](const variable_list& g) -> variable_list { return {backward_cuda(g[0].contiguous(), *state, args)}; };
    }
  }
  if (recording) connect("causal_attention", {qkv}, {&out}, std::move(backward));
  return result;
}

at::Tensor causal_attention_cached(const at::Tensor& qkv, const AttentionArgs& args, KvCache& cache) {
  at::NoGradGuard no_grad;
  check_args(qkv, args, args.seq);
  const int64_t d = args.head_dim, width = args.heads * d, kv = args.kv_heads * d, total = cache.length + args.seq;
  check(total <= cache.k.size(1), "generate: {} positions do not fit a cache of {}", total, cache.k.size(1));
  const at::Tensor plain = qkv.detach();
  rotate(plain, args, false, cache.length);
  cache.k.narrow(1, cache.length, args.seq).copy_(plain.narrow(1, width, kv).view({args.batch, args.seq, kv}));
  cache.v.narrow(1, cache.length, args.seq).copy_(plain.narrow(1, width + kv, kv).view({args.batch, args.seq, kv}));
  cache.length = total;
  if (plain.is_cpu()) {
    at::Tensor out = at::empty({plain.size(0), width}, plain.options());
    AttentionForward p;
    p.shape = {args.batch, args.seq, total, static_cast<int>(args.heads), static_cast<int>(args.kv_heads), static_cast<int>(d)};
    p.dtype = kernel_dtype(plain), p.scale = static_cast<float>(args.scale);
    p.q = plain.const_data_ptr(), p.k = cache.k.const_data_ptr(), p.v = cache.v.const_data_ptr(), p.out = out.data_ptr();
    p.q_layout.row = plain.stride(0), p.out_layout.row = width;
    p.k_layout = p.v_layout = {kv, cache.k.stride(0)};
    causal_attention_forward(p);
    return out;
  }
  const auto heads = [&](const at::Tensor& t, int64_t n) {
    return t.reshape({args.batch, t.numel() / (args.batch * n * d), n, d}).transpose(1, 2);
  };
  const at::Tensor q = heads(plain.narrow(1, 0, width), args.heads);
  const at::Tensor k = heads(cache.k.narrow(1, 0, total), args.kv_heads), v = heads(cache.v.narrow(1, 0, total), args.kv_heads);
  return aten::attention_cached(q, k, v, args);
}

}  // namespace halftone
