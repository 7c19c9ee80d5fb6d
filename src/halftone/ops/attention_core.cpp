#include "halftone/ops/attention_core.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "halftone/attention/causal.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/weight.h"

namespace halftone {
namespace {

AttentionLayout layout_of(const at::Tensor& t) { return {t.stride(1), t.stride(0), t.stride(2)}; }

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a) {
  AttentionShape s;
  s.batch = q.size(0), s.q_len = q.size(1), s.kv_len = k.size(1), s.window = a.window;
  s.heads = static_cast<int>(q.size(2)), s.kv_heads = static_cast<int>(k.size(2));
  s.head_dim = static_cast<int>(q.size(3)), s.v_dim = static_cast<int>(v.size(3)), s.gap = a.gap;
  return s;
}

const int32_t* document_starts(const AttentionArgs& a) {
  return a.documents.start.defined() ? a.documents.start.const_data_ptr<int32_t>() : nullptr;
}

aten::AttentionState forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a) {
  aten::AttentionState s;
  s.q = q, s.k = k, s.v = v;
  s.attended = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  s.lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  AttentionForward p;
  p.shape = shape_of(q, k, v, a), p.dtype = kernel_dtype(q), p.scale = static_cast<float>(a.scale);
  p.q = q.const_data_ptr(), p.k = k.const_data_ptr(), p.v = v.const_data_ptr(), p.out = s.attended.data_ptr();
  p.lse = s.lse.mutable_data_ptr<float>();
  p.q_layout = layout_of(q), p.k_layout = layout_of(k), p.v_layout = layout_of(v), p.out_layout = layout_of(s.attended);
  p.doc_start = document_starts(a), p.invariant = batch_invariant();
  causal_attention_forward(p);
  return s;
}

aten::AttentionGradients backward_cpu(const at::Tensor& d_out, const aten::AttentionState& s, const AttentionArgs& a,
                                      const aten::AttentionGradients& room) {
  AttentionBackward p;
  p.shape = shape_of(s.q, s.k, s.v, a), p.dtype = kernel_dtype(s.q), p.scale = static_cast<float>(a.scale);
  p.q = s.q.const_data_ptr(), p.k = s.k.const_data_ptr(), p.v = s.v.const_data_ptr();
  p.out = s.attended.const_data_ptr(), p.d_out = d_out.const_data_ptr(), p.lse = s.lse.const_data_ptr<float>();
  p.dq = room.q.data_ptr(), p.dk = room.k.data_ptr(), p.dv = room.v.data_ptr();
  p.q_layout = layout_of(s.q), p.k_layout = layout_of(s.k), p.v_layout = layout_of(s.v), p.out_layout = layout_of(s.attended);
  p.d_out_layout = layout_of(d_out), p.dq_layout = layout_of(room.q), p.dk_layout = layout_of(room.k), p.dv_layout = layout_of(room.v);
  p.doc_start = document_starts(a);
  causal_attention_backward(p);
  return room;
}

// A sink is the score of a key whose value is zero. Its share of the softmax is removed from the output and added to the log-sum-exp,
// from which backward recomputes the probabilities: everything computed from both is then exact.
void add_sinks(aten::AttentionState& s, const Weight& sinks) {
  const at::Tensor lse = log_sum_exp(s), sink = sinks.value.detach().to(at::kFloat);
  const bool even = batch_invariant();
  const at::Tensor whole = even ? even_logaddexp(lse, sink) : at::logaddexp(lse, sink);
  s.attended.mul_((even ? even_exp(lse - whole) : at::exp(lse - whole)).unsqueeze(3));
  lse.copy_(whole);
}

// d sink_h = - sum over rows of exp(sink_h - lse) * (d_out . out), in fp32; one batch row at a time, which bounds the memory.
void add_sinks_backward(const at::Tensor& d_out, const aten::AttentionState& s, Weight& sinks) {
  if (sinks.trainable()) {
    const at::Tensor share = at::exp(sinks.value.detach().to(at::kFloat) - log_sum_exp(s));
    at::Tensor& grad = sinks.grad_to_add();
    for (int64_t b = 0; b < d_out.size(0); ++b) {
      grad.sub_(((d_out[b].to(at::kFloat) * s.attended[b]).sum(2) * share[b]).sum(0).view(grad.sizes()));
    }
  }
  sinks.grad_ready();
}

}  // namespace

at::Tensor log_sum_exp(const aten::AttentionState& s) {
  const int64_t batch = s.attended.size(0), seq = s.attended.size(1), heads = s.attended.size(2);
  check(s.lse.numel() == batch * seq * heads, "attention: expected a log-sum-exp of {} rows * {} heads, found [{}]", batch * seq, heads,
        fmt::join(s.lse.sizes(), " x "));
  return s.lse.dim() == 2 ? s.lse.view({heads, batch, seq}).permute({1, 2, 0}) : s.lse.view({batch, heads, seq}).transpose(1, 2);
}

at::Tensor as_heads(const at::Tensor& rows, const AttentionArgs& a, int64_t heads, int64_t dim) {
  return rows.narrow(1, 0, heads * dim).view({a.batch, a.seq, heads, dim});
}

at::Tensor as_rows(const at::Tensor& t) { return t.reshape({t.size(0) * t.size(1), t.size(2) * t.size(3)}); }

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

void run(const Rope& p, c10::Device at) { at.is_cpu() ? rope(p) : cuda::launch("rope", &cuda::Module::rope, p, at); }

void check_sinks(const AttentionArgs& a) {
  check(a.sinks == nullptr || a.sinks->value.numel() == a.heads, "{}: expected a sink for each of {} heads, found [{}]",
        a.sinks == nullptr ? "" : a.sinks->name, a.heads,
        a.sinks == nullptr ? "" : fmt::format("{}", fmt::join(a.sinks->value.sizes(), " x ")));
}

aten::AttentionState attend_once(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a) {
  return q.is_cpu() ? forward_cpu(q, k, v, a) : aten::attention(q, k, v, a);
}

aten::AttentionGradients attend_once_backward(const at::Tensor& d_out, const aten::AttentionState& s, const AttentionArgs& a,
                                              const aten::AttentionGradients& room) {
  return d_out.is_cpu() ? backward_cpu(d_out, s, a, room) : aten::attention_backward(d_out, s, a);
}

aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a, bool keep) {
  aten::AttentionState s = a.documents.port ? a.documents.port->attend(q, k, v, a) : attend_once(q, k, v, a);
  if (a.sinks != nullptr) add_sinks(s, *a.sinks);
  s.out = as_rows(s.attended);
  if (!keep) s.q = s.k = s.v = s.attended = s.lse = s.seed = s.offset = at::Tensor();
  return s;
}

aten::AttentionGradients attend_backward(const at::Tensor& d_out, const aten::AttentionState& s, const AttentionArgs& a,
                                         const aten::AttentionGradients& room) {
  const at::Tensor grad = d_out.view(s.attended.sizes());
  if (a.sinks != nullptr) add_sinks_backward(grad, s, *a.sinks);
  return a.documents.port ? a.documents.port->backward(grad, s, a, room) : attend_once_backward(grad, s, a, room);
}

at::Tensor attend_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a, KvCache& cache) {
  const int64_t total = cache.length + a.seq;
  check(total <= cache.k.size(1), "generate: {} positions do not fit a cache of {}", total, cache.k.size(1));
  // Keys before the window of the first query are not read.
  int64_t seen = a.window > 0 ? std::min(total, a.seq + a.window - 1) : total;
  if (batch_invariant()) seen = total - (total - seen) / kInvariantKeys * kInvariantKeys;  // in whole blocks
  const auto append = [&](const at::Tensor& whole, const at::Tensor& part) {
    const auto places = [&](int64_t first, int64_t count) {
      return whole.narrow(1, first, count).view({a.batch, count, part.size(2), part.size(3)});
    };
    places(cache.length, a.seq).copy_(part);
    return places(total - seen, seen);
  };
  const at::Tensor keys = append(cache.k, k), values = append(cache.v, v);
  cache.length = total;
  aten::AttentionState s = q.is_cpu() ? attend_once(q, keys, values, a) : aten::attention_cached(q, keys, values, a);
  if (a.sinks != nullptr) add_sinks(s, *a.sinks);
  return as_rows(s.attended);
}

}  // namespace halftone
