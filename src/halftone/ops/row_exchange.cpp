#include "halftone/ops/row_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

size_t place(int64_t rank) { return static_cast<size_t>(rank); }

// Each rank's rows: those of the rank `first` places after this one come first, then the others in steps of `turn`; or all rows as one
// part.
std::vector<RowPart> parts_of(int64_t rows, const comm::Communicator& ranks, bool in_parts, int64_t first, int64_t turn) {
  const int64_t n = ranks.size();
  if (!in_parts) return {{ranks.index(), 0, rows}};
  std::vector<RowPart> parts;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t rank = (ranks.index() + first + k * turn + n) % n;
    parts.push_back({rank, rank * (rows / n), rows / n});
  }
  return parts;
}

}  // namespace

comm::Pending shift(const at::Tensor& rows, at::Tensor& to, int64_t by, comm::Communicator& ranks) {
  const int64_t n = ranks.size();
  std::vector<int64_t> sent(place(n)), received(place(n));
  sent[place((ranks.index() + by) % n)] = received[place((ranks.index() + n - by) % n)] = 1;
  at::Tensor out = to.view({1, -1});
  return ranks.all_to_all(out, rows.view({1, -1}), received, sent);
}

GatheredRows::GatheredRows(const std::vector<at::Tensor>& own, const RowShares& shares, comm::Communicator& ranks)
    : parts_(parts_of(own.front().size(0) * ranks.size(), ranks, shares.in_parts, 0, -1)), pending_(place(ranks.size())) {
  for (const at::Tensor& t : own) {
    std::vector<int64_t> shape = t.sizes().vec();
    shape[0] *= ranks.size();
    own_.push_back(t.contiguous()), whole_.push_back(at::empty(shape, t.options()));
  }
  if (!shares.in_parts) {
    pending_[place(ranks.index())].push_back(ranks.all_gather(whole_, own_));
    return;
  }
  for (const RowPart& part : parts_) {
    for (size_t i = 0; i < own_.size(); ++i) {
      at::Tensor to = part.of(whole_[i]);
      if (part.rank == ranks.index()) {
        to.copy_(own_[i]);
      } else {
        pending_[place(part.rank)].push_back(shift(own_[i], to, (ranks.index() - part.rank + ranks.size()) % ranks.size(), ranks));
      }
    }
  }
}

void GatheredRows::wait(const RowPart& part) {
  for (comm::Pending& p : std::exchange(pending_[place(part.rank)], {})) p.wait();
}

ScatteredSum::ScatteredSum(at::Tensor partial, const RowShares& shares, comm::Communicator& ranks)
    : in_parts_(shares.in_parts), ranks_(ranks), partial_(std::move(partial)), came_(place(ranks.size())) {
  const int64_t rows = partial_.size(0);
  check(rows % ranks.size() == 0, "row shards: {} ranks do not divide {} rows", ranks.size(), rows);
  parts_ = parts_of(rows, ranks, in_parts_, 1, 1);
}

void ScatteredSum::send(const RowPart& part) {
  const int64_t n = ranks_.size(), by = (part.rank - ranks_.index() + n) % n;
  if (!in_parts_ || by == 0) return;
  at::Tensor& to = came_[place((ranks_.index() - by + n) % n)];
  if (to.defined()) return;
  const at::Tensor rows = part.of(partial_);
  to = at::empty_like(rows);
  pending_.push_back(shift(rows, to, by, ranks_));
}

at::Tensor ScatteredSum::sum() {
  const int64_t rows = partial_.size(0) / ranks_.size();
  const at::Tensor own = partial_.narrow(0, ranks_.index() * rows, rows);
  at::Tensor out = at::empty_like(own);
  if (!in_parts_) {
    ranks_.reduce_scatter(out, partial_).wait();
    return out;
  }
  for (comm::Pending& p : pending_) p.wait();
  came_[place(ranks_.index())] = own;
  at::Tensor sum = came_[0].to(at::kFloat, false, true);
  for (size_t r = 1; r < came_.size(); ++r) sum.add_(came_[r]);
  out.copy_(sum);
  return out;
}

}  // namespace halftone
