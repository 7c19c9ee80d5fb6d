#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "halftone/comm/communicator.h"
#include "halftone/ops/attention.h"

namespace halftone {

// Which process of those that share rows has which of their places (context parallelism).
enum class ContextBalance {
  none,       // one run each
  head_tail,  // of 2 n chunks the process i of n has i and 2 n - 1 - i: with causal attention all have as many keys to read
  by_work,    // chunks by the keys that documents and windows leave to their queries
};

struct ContextOptions {
  ContextBalance balance = ContextBalance::head_tail;
  bool ring = false;   // keys and values go from process to process, else each gathers all
  int64_t window = 0;  // of by_work: keys that a query sees at most, itself counted; 0: no limit
};

// Places [first, end) of a row.
struct ContextRun {
  int64_t first, end;
  int64_t size() const { return end - first; }
  bool operator==(const ContextRun&) const = default;
};

// The runs of each of `processes`, ascending and equally many places in all; the same on every process. starts: of documents, int32 [B, S]
// in host memory, or undefined.
std::vector<std::vector<ContextRun>> share_places(int64_t seq, int64_t processes, const ContextOptions& options, const at::Tensor& starts);

// How the rows of a micro-batch lie on the processes that share them. Its tensors hold this process's places only, run after run.
class ContextRows {
 public:
  // Process `index` of `processes`, of which all make it with equal rows: `batch` rows of `seq` places, documents as above.
  ContextRows(int64_t processes, int64_t index, const ContextOptions& options, int64_t batch, int64_t seq, const at::Tensor& starts,
              c10::Device device);
  ContextRows(comm::Communicator& ranks, const ContextOptions& options, int64_t batch, int64_t seq, const at::Tensor& starts,
              c10::Device device)
      : ContextRows(ranks.size(), ranks.index(), options, batch, seq, starts, device) {
    ranks_ = &ranks;
  }

  comm::Communicator& ranks() const { return *ranks_; }
  bool ring() const { return ring_; }
  int64_t batch() const { return batch_; }
  int64_t places() const { return seq_ / static_cast<int64_t>(runs_.size()); }  // of a row that this process has
  // [B, S, ...] of whole rows -> [B, S / n, ...] of this process.
  at::Tensor own(const at::Tensor& rows) const;
  // [n, B, S / n, ...] of the processes, by rank -> [B, S, ...], and back.
  at::Tensor in_order(const at::Tensor& parts) const;
  at::Tensor by_rank(const at::Tensor& rows) const;

  // What one call of attention's kernels covers: of `rows` rows the queries at places [query, query + queries) of this process's and the
  // keys [key, key + keys) of those at hand. The last query stands `gap` places after the last key.
  struct Call {
    int64_t row, rows, query, queries, key, keys, gap;
    Documents documents;  // of places from the first key to the last query, as AttentionArgs::documents
  };
  // Over keys in the order of whole rows: one for each run of queries, or, where nothing but the future is hidden, one over the run's own
  // keys and one over all before them, of which kernels mask nothing.
  const std::vector<Call>& calls(int64_t window) const { return calls_with(kAll, window); }
  // Over the keys that process `holder` has, where this one's queries see some of them. Of its own first those in which each query sees
  // itself.
  const std::vector<Call>& calls(int64_t holder, int64_t window) const { return calls_with(holder, window); }

 private:
  static constexpr int64_t kAll = -1;
  const std::vector<Call>& calls_with(int64_t holder, int64_t window) const;
  void add_calls(std::vector<Call>& calls, const ContextRun& queries, int64_t query, const ContextRun& keys, int64_t key, int64_t window,
                 int64_t row, int64_t rows) const;
  Documents documents_between(int64_t row, int64_t rows, int64_t query, int64_t first_key, int64_t end_key, int64_t end) const;
  int64_t start(int64_t row, int64_t place) const;  // of its document
  int64_t first_seen(int64_t row, int64_t rows, int64_t place, int64_t window) const;

  comm::Communicator* ranks_ = nullptr;
  int64_t index_;
  bool ring_;
  int64_t batch_, seq_;
  std::vector<std::vector<ContextRun>> runs_;  // by rank
  at::Tensor starts_;
  c10::Device device_;
  mutable std::map<std::pair<int64_t, int64_t>, std::vector<Call>> calls_;  // by holder and window
};

}  // namespace halftone
