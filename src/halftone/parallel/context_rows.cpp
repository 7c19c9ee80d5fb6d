#include "halftone/parallel/context_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "halftone/ops/common.h"

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

}  // namespace halftone::parallel
