#include "halftone/parallel/context.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "halftone/ops/common.h"
#include "halftone/ops/row_exchange.h"
#include "halftone/parallel/collectives.h"

namespace halftone::parallel {
namespace {

// Smaller chunks balance better but need more kernel calls, with fewer queries each.
constexpr int64_t kMostParts = 4, kLeastChunk = 128;

int64_t start_of(const at::Tensor& starts, int64_t row, int64_t place) {
  return starts.defined() ? starts.const_data_ptr<int32_t>()[row * starts.size(1) + place] : 0;
}

// Query-key pairs of each chunk, over all rows.
std::vector<int64_t> work_of(int64_t seq, int64_t chunks, int64_t window, const at::Tensor& starts) {
  std::vector<int64_t> work(static_cast<size_t>(chunks));
  for (int64_t row = 0; row < (starts.defined() ? starts.size(0) : 1); ++row) {
    for (int64_t place = 0; place < seq; ++place) {
      const int64_t seen = place - start_of(starts, row, place) + 1;
      work[static_cast<size_t>(place * chunks / seq)] += window > 0 ? std::min(window, seen) : seen;
    }
  }
  return work;
}

// The rank of each chunk, greedily: the least-loaded rank takes the largest remaining chunk until it has its share.
std::vector<int64_t> balanced(const std::vector<int64_t>& work, int64_t processes) {
  const size_t share = work.size() / static_cast<size_t>(processes);
  std::vector<size_t> order(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<int64_t> owner(work.size()), sums(static_cast<size_t>(processes));
  std::vector<size_t> taken(static_cast<size_t>(processes));
  for (const size_t chunk : order) {
    size_t best = sums.size();
    for (size_t p = 0; p < sums.size(); ++p) {
      if (taken[p] < share && (best == sums.size() || sums[p] < sums[best])) best = p;
    }
    owner[chunk] = static_cast<int64_t>(best), sums[best] += work[chunk], ++taken[best];
  }
  return owner;
}

at::Tensor uploaded(const std::vector<int32_t>& numbers, c10::Device device) {
  const at::Tensor host =
      at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions().dtype(at::kInt).pinned_memory(device.is_cuda()));
  std::copy(numbers.begin(), numbers.end(), host.mutable_data_ptr<int32_t>());
  return host.to(device, true);
}

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

std::vector<std::vector<ContextRun>> share_places(int64_t seq, int64_t processes, const ContextOptions& o, const at::Tensor& starts) {
  int64_t chunks = o.balance == ContextBalance::none ? processes : 2 * processes;
  check(seq % chunks == 0, "context parallelism: expected rows of a multiple of {} positions, found {}; set training.seq_len accordingly",
        chunks, seq);
  std::vector<int64_t> owner(static_cast<size_t>(chunks));
  if (o.balance == ContextBalance::by_work) {
    for (int64_t parts = kMostParts; parts > 1; parts /= 2) {
      if (seq % (chunks * parts) != 0 || seq / (chunks * parts) < kLeastChunk) continue;
      chunks *= parts;
      break;
    }
    owner = balanced(work_of(seq, chunks, o.window, starts), processes);
  } else {
    for (int64_t c = 0; c < chunks; ++c)
      owner[static_cast<size_t>(c)] = std::min(c, o.balance == ContextBalance::none ? c : chunks - 1 - c);
  }
  std::vector<std::vector<ContextRun>> runs(static_cast<size_t>(processes));
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<ContextRun>& own = runs[static_cast<size_t>(owner[static_cast<size_t>(c)])];
    const ContextRun chunk{c * (seq / chunks), (c + 1) * (seq / chunks)};
    if (!own.empty() && own.back().end == chunk.first) {
      own.back().end = chunk.end;
    } else {
      own.push_back(chunk);
    }
  }
  return runs;
}

ContextRows::ContextRows(int64_t processes, int64_t index, const ContextOptions& options, int64_t batch, int64_t seq,
                         const at::Tensor& starts, c10::Device device)
    : index_(index),
      ring_(options.ring),
      batch_(batch),
      seq_(seq),
      runs_(share_places(seq, processes, options, starts)),
      starts_(starts),
      device_(device) {
  check(!starts.defined() || (starts.is_cpu() && starts.scalar_type() == at::kInt && starts.is_contiguous() && starts.dim() == 2 &&
                              starts.size(0) == batch && starts.size(1) == seq),
        "context parallelism: expected the starts of documents as int32 [{}, {}] in host memory, found [{}]", batch, seq,
        starts.defined() ? fmt::format("{}", fmt::join(starts.sizes(), " x ")) : "");
}

at::Tensor ContextRows::own(const at::Tensor& rows) const {
  std::vector<at::Tensor> parts;
  for (const ContextRun& run : runs_[static_cast<size_t>(index_)]) parts.push_back(rows.narrow(1, run.first, run.size()));
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, 1);
}

at::Tensor ContextRows::in_order(const at::Tensor& parts) const {
  std::map<int64_t, at::Tensor> by_place;
  for (size_t rank = 0; rank < runs_.size(); ++rank) {
    int64_t at = 0;
    for (const ContextRun& run : runs_[rank]) {
      by_place[run.first] = parts[static_cast<int64_t>(rank)].narrow(1, at, run.size());
      at += run.size();
    }
  }
  std::vector<at::Tensor> ordered;
  for (const auto& [place, part] : by_place) ordered.push_back(part);
  return at::cat(ordered, 1);
}

at::Tensor ContextRows::by_rank(const at::Tensor& rows) const {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[1] = places(), shape.insert(shape.begin(), static_cast<int64_t>(runs_.size()));
  at::Tensor parts = at::empty(shape, rows.options());
  for (size_t rank = 0; rank < runs_.size(); ++rank) {
    int64_t at = 0;
    for (const ContextRun& run : runs_[rank]) {
      parts[static_cast<int64_t>(rank)].narrow(1, at, run.size()).copy_(rows.narrow(1, run.first, run.size()));
      at += run.size();
    }
  }
  return parts;
}

int64_t ContextRows::start(int64_t row, int64_t place) const { return start_of(starts_, row, place); }

// First key that any of the rows sees; non-decreasing in `place`.
int64_t ContextRows::first_seen(int64_t row, int64_t rows, int64_t place, int64_t window) const {
  int64_t first = place;
  for (int64_t r = row; r < row + (starts_.defined() ? rows : 1); ++r) first = std::min(first, start(r, place));
  return window > 0 ? std::max(first, place - window + 1) : first;
}

const std::vector<ContextRows::Call>& ContextRows::calls_with(int64_t holder, int64_t window) const {
  const auto [at, is_new] = calls_.try_emplace({holder, window});
  if (!is_new) return at->second;
  // A kernel takes one window for queries and keys with a gap between them, so rows whose documents end differently are called one by
  // one.
  const bool apart = holder != kAll && window > 0 && starts_.defined();
  int64_t query = 0;
  for (const ContextRun& queries : runs_[static_cast<size_t>(index_)]) {
    std::vector<ContextRun> all = {{0, seq_}};
    if (window == 0 && !starts_.defined()) all = {{0, queries.first}, {queries.first, seq_}};
    int64_t key = 0;
    for (const ContextRun& keys : holder == kAll ? all : runs_[static_cast<size_t>(holder)]) {
      for (int64_t row = 0; row < (apart ? batch_ : 1); ++row)
        add_calls(at->second, queries, query, keys, key, window, row, apart ? 1 : batch_);
      key += keys.size();
    }
    query += queries.size();
  }
  std::stable_sort(at->second.begin(), at->second.end(), [](const Call& a, const Call& b) { return a.gap == 0 && b.gap > 0; });
  return at->second;
}

void ContextRows::add_calls(std::vector<Call>& calls, const ContextRun& queries, int64_t query, const ContextRun& keys, int64_t key,
                            int64_t window, int64_t row, int64_t rows) const {
  const int64_t first = std::max(keys.first, first_seen(row, rows, queries.first, window)), end = std::min(keys.end, queries.end);
  if (first >= end) return;
  int64_t last = queries.end;
  while (last > queries.first && first_seen(row, rows, last - 1, window) >= end) --last;
  if (last == queries.first) return;
  calls.push_back({row, rows, query, last - queries.first, key + first - keys.first, end - first, last - end,
                   documents_between(row, rows, queries.first, first, end, last)});
}

// Queries [query, end), keys [first, key_end).
Documents ContextRows::documents_between(int64_t row, int64_t rows, int64_t query, int64_t first, int64_t key_end, int64_t end) const {
  Documents d;
  if (!starts_.defined()) return d;
  const at::Tensor places = starts_.narrow(0, row, rows).narrow(1, first, end - first) - static_cast<int32_t>(first);
  d.start = uploaded({places.const_data_ptr<int32_t>(), places.const_data_ptr<int32_t>() + places.numel()}, device_);
  // One sequence per run of queries that see the same keys; keys that no query sees and queries that see no key become sequences of their
  // own.
  std::vector<int32_t> q = {0}, k = {0};
  const auto add = [&](int64_t queries, int64_t keys) {
    if (queries == 0 && keys == 0) return;
    q.push_back(q.back() + static_cast<int32_t>(queries)), k.push_back(k.back() + static_cast<int32_t>(keys));
    d.longest = std::max(d.longest, queries), d.longest_keys = std::max(d.longest_keys, keys);
  };
  for (int64_t r = row; r < row + rows; ++r) {
    int64_t key = std::clamp(start(r, query), first, key_end), place = query;
    add(0, key - first);
    while (place < end) {
      int64_t next = place + 1;
      while (next < end && start(r, next) == start(r, place)) ++next;
      const int64_t seen = std::max(key, std::min(next, key_end));
      add(next - place, seen - key);
      key = seen, place = next;
    }
    add(0, key_end - key);
  }
  d.offsets = uploaded(q, device_), d.key_offsets = uploaded(k, device_);
  return d;
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
    run(calls(a.window), in_order(stack_ranks(own, *ranks_)));
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
    const at::Tensor rows = in_order(stack_ranks(own, *ranks_)), d_rows = zeros(rows.sizes());
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

ContextOptions context_options(const ParallelismConfig& p, int64_t window) {
  ContextOptions o;
  const std::string& balancer = p.context_parallel_load_balancer.value_or("");
  o.balance = balancer == "ptrr" ? ContextBalance::by_work : balancer == "headtail" ? ContextBalance::head_tail : ContextBalance::none;
  o.ring = p.context_parallel_rotate_method == "alltoall";
  if (p.context_parallel_ptrr_mask_key == "sliding_window_mask") o.window = window;
  return o;
}

nn::MicroBatch own_places(const nn::MicroBatch& rows, comm::Communicator& ranks, const ContextOptions& options, c10::Device device) {
  nn::MicroBatch own = rows;
  const int64_t batch = rows.input.tokens.size(0), seq = rows.input.tokens.size(1);
  const Documents& documents = rows.input.documents;
  check(documents.host_start.defined() || !documents.start.defined(), "context parallelism: expected documents as of documents_of");
  const auto context = std::make_shared<ContextRows>(ranks, options, batch, seq, documents.host_start, device);
  const at::Tensor positions = rows.input.positions.defined()
                                   ? rows.input.positions
                                   : at::arange(seq, rows.input.tokens.options().dtype(at::kInt)).unsqueeze(0).expand({batch, seq});
  own.input.tokens = context->own(rows.input.tokens), own.labels = context->own(rows.labels);
  own.input.positions = context->own(positions);
  if (rows.input.padding.defined()) own.input.padding = context->own(rows.input.padding);
  if (rows.sources.defined()) own.sources = context->own(rows.sources);
  own.input.documents = {}, own.input.documents.port = context;
  own.valid_labels = own.labels.is_meta() ? own.labels.numel() : own.labels.ne(-100).sum().item<int64_t>();
  own.first_row = rows.first_row + ranks.index() * own.input.tokens.numel();
  return own;
}

}  // namespace halftone::parallel
