#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>
#include <vector>

#include "halftone/ops/common.h"
#include "halftone/ops/row_exchange.h"
#include "halftone/parallel/context_rows.h"

// Attention of context-parallel rows, ContextRows as a port.
namespace halftone::parallel {
namespace {

using Call = ContextRows::Call;

// [B, positions, ...] -> the slice that the call covers.
at::Tensor queries_of(const at::Tensor& t, const Call& c) { return t.narrow(0, c.row, c.rows).narrow(1, c.query, c.queries); }
at::Tensor keys_of(const at::Tensor& t, const Call& c) { return t.narrow(0, c.row, c.rows).narrow(1, c.key, c.keys); }
// The same for [B, H, positions].
at::Tensor lse_of(const at::Tensor& t, const Call& c) { return t.narrow(0, c.row, c.rows).narrow(2, c.query, c.queries); }

AttentionArgs args_of(const Call& c, const AttentionArgs& a) {
  AttentionArgs part = a;
  part.batch = c.rows, part.seq = c.queries, part.gap = c.gap, part.documents = c.documents;
  return part;
}

// Keys and values of some positions, or their gradients, side by side as they are sent: [B, positions, Hkv * d + Hkv * dv].
struct KeysAndValues {
  KeysAndValues(const at::Tensor& rows, const at::Tensor& k, const at::Tensor& v)
      : k(rows.narrow(2, 0, k.size(2) * k.size(3)).unflatten(2, {k.size(2), k.size(3)})),
        v(rows.narrow(2, k.size(2) * k.size(3), v.size(2) * v.size(3)).unflatten(2, {v.size(2), v.size(3)})) {}
  at::Tensor k, v;  // [B, positions, Hkv, d or dv], views
};
at::Tensor packed(const at::Tensor& k, const at::Tensor& v) { return at::cat({k.flatten(2), v.flatten(2)}, 2); }

// Calls use(keys and values, their rank), starting with this rank's own, while the next ones are in flight.
template <class Use>
void go_round(const at::Tensor& own, comm::Communicator& ranks, Use&& use) {
  at::Tensor held = own;
  for (int64_t step = 0; step < ranks.size(); ++step) {
    at::Tensor next;
    std::optional<comm::Pending> pending;
    if (step + 1 < ranks.size()) next = at::empty_like(held), pending.emplace(shift(held, next, 1, ranks));
    use(held, (ranks.index() + ranks.size() - step) % ranks.size());
    if (pending) pending->wait();
    held = next;
  }
}

// Merges softmaxes over parts of the keys into one over all of them, in fp32. In the first part, the one without a gap, every query sees
// itself.
struct Merged {
  explicit Merged(const aten::AttentionState& s) : sum(at::empty(s.attended.sizes(), s.attended.options().dtype(at::kFloat))), lse(s.lse) {}
  void add(const aten::AttentionState& part, const Call& c) {
    const at::Tensor before = lse_of(lse, c).transpose(1, 2);
    at::Tensor more = log_sum_exp(part);
    if (c.gap == 0) {
      queries_of(sum, c).copy_(part.attended), before.copy_(more);
      return;
    }
    if (more.is_cuda())
      more = more.masked_fill(more == std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity());  // flash-2's value when a query sees no key
    const at::Tensor all = at::logaddexp(before, more);
    queries_of(sum, c).mul_(at::exp(before - all).unsqueeze(3)).add_(part.attended * at::exp(more - all).unsqueeze(3));
    before.copy_(all);
  }
  at::Tensor sum, lse;
};

}  // namespace

at::Tensor ContextRows::gathered(const at::Tensor& rows) const {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.insert(shape.begin(), ranks_->size());
  at::Tensor parts = at::empty(shape, rows.options());
  ranks_->all_gather(parts, rows).wait();
  return in_order(parts);
}

aten::AttentionState ContextRows::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& a) const {
  check(q.size(0) == batch_ && q.size(1) == places() && !a.documents.start.defined(),
        "attention: expected {} of each of {} shared rows and documents in their context, found queries of [{}]", places(), batch_,
        fmt::join(q.sizes(), " x "));
  aten::AttentionState s;
  s.q = q, s.k = k, s.v = v;
  s.attended = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  s.lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  Merged merged(s);
  const auto run = [&](const std::vector<Call>& calls, const at::Tensor& rows) {
    const KeysAndValues kv(rows, k, v);
    for (const Call& c : calls) {
      const aten::AttentionState part = attend_once(queries_of(q, c), keys_of(kv.k, c), keys_of(kv.v, c), args_of(c, a));
      s.seed = part.seed, s.offset = part.offset;
      merged.add(part, c);
    }
  };
  const at::Tensor own = packed(k, v);
  if (ring_) {
    go_round(own, *ranks_, [&](const at::Tensor& held, int64_t holder) { run(calls(holder, a.window), held); });
  } else {
    run(calls(a.window), gathered(own));
  }
  s.attended.copy_(merged.sum);
  return s;
}

aten::AttentionGradients ContextRows::backward(const at::Tensor& d_out, const aten::AttentionState& s, const AttentionArgs& a,
                                               const aten::AttentionGradients& room) const {
  const at::Tensor own = packed(s.k, s.v);
  const auto zeros = [&](at::IntArrayRef shape) { return at::zeros(shape, s.q.options().dtype(at::kFloat)); };
  // Gradients of the call's queries accumulate in dq, those of its keys and values in d.
  const auto run = [&](const Call& c, const KeysAndValues& kv, const at::Tensor& dq, const KeysAndValues& d) {
    aten::AttentionState part;
    part.q = queries_of(s.q, c), part.k = keys_of(kv.k, c), part.v = keys_of(kv.v, c);
    part.attended = queries_of(s.attended, c), part.lse = lse_of(s.lse, c).contiguous(), part.seed = s.seed, part.offset = s.offset;
    aten::AttentionGradients to;
    if (s.q.is_cpu()) {
      const auto like = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };
      to = {like(part.q), like(part.k), like(part.v)};
    }
    const aten::AttentionGradients g = attend_once_backward(queries_of(d_out, c), part, args_of(c, a), to);
    queries_of(dq, c).add_(g.q), keys_of(d.k, c).add_(g.k), keys_of(d.v, c).add_(g.v);
  };
  const at::Tensor dq = zeros(s.q.sizes());
  at::Tensor d_own = at::empty(own.sizes(), own.options().dtype(at::kFloat));
  if (!ring_) {
    const at::Tensor rows = gathered(own), d_rows = zeros(rows.sizes());
    for (const Call& c : calls(a.window)) run(c, KeysAndValues(rows, s.k, s.v), dq, KeysAndValues(d_rows, s.k, s.v));
    ranks_->reduce_scatter(d_own, by_rank(d_rows)).wait();
  } else {
    // The gradient sum for a rank's keys follows them around the ring, one step behind, and returns to that rank at the end.
    at::Tensor sum;
    std::optional<comm::Pending> pending;
    go_round(own, *ranks_, [&](const at::Tensor& held, int64_t holder) {
      const at::Tensor d_held = zeros(own.sizes());
      for (const Call& c : calls(holder, a.window)) run(c, KeysAndValues(held, s.k, s.v), dq, KeysAndValues(d_held, s.k, s.v));
      if (pending) pending->wait(), d_held.add_(d_own);
      sum = d_held;
      pending.emplace(shift(sum, d_own, 1, *ranks_));
    });
    pending->wait();
  }
  const KeysAndValues d(d_own, s.k, s.v);
  if (!room.q.defined()) return {dq.to(s.q.scalar_type()), d.k.to(s.q.scalar_type()), d.v.to(s.q.scalar_type())};
  room.q.copy_(dq), room.k.copy_(d.k), room.v.copy_(d.v);
  return room;
}

}  // namespace halftone::parallel
