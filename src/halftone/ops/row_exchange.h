#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "halftone/comm/communicator.h"

// Row-sharded matrices with equal shards per rank, transferred while GEMMs read or write parts of them.
namespace halftone {

// The ranks that a layer shards rows with. input: all-gathers the rows of the input and reduce-scatters their gradients. output:
// reduce-scatters the output, which is the sum of the ranks' partial results.
struct RowShares {
  comm::Communicator *input = nullptr, *output = nullptr;  // one of them, or none
  bool in_parts = false;                                   // GEMMs run in one part per rank, overlapped with the transfers
};

struct RowPart {
  int64_t rank, first, rows;  // in the matrix of all ranks' rows
  at::Tensor of(const at::Tensor& t) const { return t.narrow(0, first, rows); }
};

// Sends `rows` to the rank `by` places ahead, and receives those of the rank as far behind into `to`.
comm::Pending shift(const at::Tensor& rows, at::Tensor& to, int64_t by, comm::Communicator& ranks);

// All-gather: matrices of all ranks' rows from this rank's rows.
class GatheredRows {
 public:
  GatheredRows(const std::vector<at::Tensor>& own, const RowShares& shares, comm::Communicator& ranks);
  const std::vector<at::Tensor>& whole() const { return whole_; }
  const std::vector<RowPart>& parts() const { return parts_; }  // in order of arrival, this rank's first; or all as one
  void wait(const RowPart& part);                               // may be called repeatedly
  void wait() {
    for (const RowPart& p : parts_) wait(p);
  }

 private:
  std::vector<at::Tensor> own_, whole_;
  std::vector<RowPart> parts_;
  std::vector<std::vector<comm::Pending>> pending_;  // of each rank, until they have arrived
};

// Reduce-scatter: this rank's rows of the sum of a matrix that each rank writes part by part. On the CPU the result equals
// Communicator::reduce_scatter: summed in rank order, in float32.
class ScatteredSum {
 public:
  ScatteredSum(at::Tensor partial, const RowShares& shares, comm::Communicator& ranks);
  const std::vector<RowPart>& parts() const { return parts_; }  // in the order in which they should be written, this rank's last
  void send(const RowPart& part);                               // call once the part is written; may be called repeatedly
  at::Tensor sum();                                             // after all parts

 private:
  const bool in_parts_;
  comm::Communicator& ranks_;
  at::Tensor partial_;
  std::vector<RowPart> parts_;
  std::vector<at::Tensor> came_;  // received parts, by rank
  std::vector<comm::Pending> pending_;
};

}  // namespace halftone
