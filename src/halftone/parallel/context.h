#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "halftone/comm/communicator.h"
#include "halftone/config/parallelism_config.h"
#include "halftone/nn/model.h"
#include "halftone/ops/attention_core.h"

namespace halftone::parallel {

// Which positions of a row each context-parallel rank holds.
enum class ContextBalance {
  none,       // one contiguous run per rank
  head_tail,  // of 2n chunks, rank i of n holds i and 2n - 1 - i: causal attention then reads equally many keys on every rank
  by_work,    // chunks balanced by the keys that documents and windows leave visible to their queries
};

struct ContextOptions {
  ContextBalance balance = ContextBalance::head_tail;
  bool ring = false;   // keys and values circulate from rank to rank; false: each rank all-gathers them
  int64_t window = 0;  // for by_work: most keys a query sees, itself included; 0: no limit
};

// Positions [first, end) of a row.
struct ContextRun {
  int64_t first, end;
  int64_t size() const { return end - first; }
  bool operator==(const ContextRun&) const = default;
};

// The runs of each of `processes` ranks, ascending, with equally many positions per rank; the result is the same on every rank. starts:
// document starts, int32 [B, S] in host memory, or undefined.
std::vector<std::vector<ContextRun>> share_places(int64_t seq, int64_t processes, const ContextOptions& options, const at::Tensor& starts);

// How the rows of a micro-batch are split over context-parallel ranks. A rank's tensors hold only its own positions, run after run. As a
// port of attention it exchanges keys and values; queries stay.
class ContextRows : public AttentionPort {
 public:
  // Rank `index` of `processes`; all ranks construct it with the same arguments: `batch` rows of `seq` positions, documents as above.
  ContextRows(int64_t processes, int64_t index, const ContextOptions& options, int64_t batch, int64_t seq, const at::Tensor& starts,
              c10::Device device);
  ContextRows(comm::Communicator& ranks, const ContextOptions& options, int64_t batch, int64_t seq, const at::Tensor& starts,
              c10::Device device)
      : ContextRows(ranks.size(), ranks.index(), options, batch, seq, starts, device) {
    ranks_ = &ranks;
  }

  aten::AttentionState attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) const override;
  aten::AttentionGradients backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                    const aten::AttentionGradients& room) const override;
  int64_t places() const { return seq_ / static_cast<int64_t>(runs_.size()); }  // local positions per row
  // Full rows [B, S, ...] -> this rank's [B, S / n, ...].
  at::Tensor own(const at::Tensor& rows) const;
  // All ranks' [n, B, S / n, ...], in rank order -> [B, S, ...], and back.
  at::Tensor in_order(const at::Tensor& parts) const;
  at::Tensor by_rank(const at::Tensor& rows) const;

  // One kernel call: for `rows` rows, the queries at local positions [query, query + queries) and the available keys [key,
  // key + keys). The last query is `gap` positions after the last key.
  struct Call {
    int64_t row, rows, query, queries, key, keys, gap;
    Documents documents;  // from the first key to the last query, as AttentionArgs::documents
  };
  // Calls over keys in full-row order: one per run of queries; or, if only the causal mask applies, one over the run's own keys and an
  // unmasked one over all earlier keys.
  const std::vector<Call>& calls(int64_t window) const { return calls_with(kAll, window); }
  // Calls over the keys of rank `holder`, where this rank's queries see some of them. For the rank's own keys, the calls in which each
  // query sees itself come first.
  const std::vector<Call>& calls(int64_t holder, int64_t window) const { return calls_with(holder, window); }

 private:
  static constexpr int64_t kAll = -1;
  const std::vector<Call>& calls_with(int64_t holder, int64_t window) const;
  void add_calls(std::vector<Call>& calls, const ContextRun& queries, int64_t query, const ContextRun& keys, int64_t key, int64_t window,
                 int64_t row, int64_t rows) const;
  Documents documents_between(int64_t row, int64_t rows, int64_t query, int64_t first_key, int64_t end_key, int64_t end) const;
  int64_t start(int64_t row, int64_t place) const;  // of the document at `place`
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

// From [parallelism], for a model whose widest window is `window`.
ContextOptions context_options(const ParallelismConfig& parallelism, int64_t window);

// This rank's positions of context-parallel rows shared with `ranks`, for computation on `device`; `rows` is the same on all ranks and
// may be on another device. Each rank draws by row indices of its own.
nn::MicroBatch own_places(const nn::MicroBatch& rows, comm::Communicator& ranks, const ContextOptions& options, c10::Device device);

}  // namespace halftone::parallel
