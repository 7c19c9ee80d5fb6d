#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "halftone/comm/communicator.h"

// Rows of matrices that processes share out, equally many each, on their way while products read or write parts of them.
namespace halftone {

// With whom a layer shares rows: those of its input, then this process gives its own and gets their gradients; or those of its output,
// which is the sum of what the processes have computed in parts.
struct RowShares {
  comm::Communicator *input = nullptr, *output = nullptr;  // one of them, or none
  bool in_parts = false;                                   // products run in one part per process, beside the parts under way
};

struct RowPart {
  int64_t rank, first, rows;  // of a matrix of all ranks' rows
  at::Tensor of(const at::Tensor& t) const { return t.narrow(0, first, rows); }
};

// `rows` to the rank `by` places on, and those of the rank as far before into `to`.
comm::Pending shift(const at::Tensor& rows, at::Tensor& to, int64_t by, comm::Communicator& ranks);

// Matrices of all ranks' rows from this rank's own.
class GatheredRows {
 public:
  GatheredRows(const std::vector<at::Tensor>& own, const RowShares& shares, comm::Communicator& ranks);
  const std::vector<at::Tensor>& whole() const { return whole_; }
  const std::vector<RowPart>& parts() const { return parts_; }  // in the order in which they come, this rank's first; or all as one
  void wait(const RowPart& part);                               // may be called again
  void wait() {
    for (const RowPart& p : parts_) wait(p);
  }

 private:
  std::vector<at::Tensor> own_, whole_;
  std::vector<RowPart> parts_;
  std::vector<std::vector<comm::Pending>> pending_;  // of each rank, until they have come
};

// This rank's rows of the ranks' sum of a matrix that each writes part by part. On the CPU these are the numbers of
// Communicator::reduce_scatter: added in the order of the ranks, in float32.
class ScatteredSum {
 public:
  ScatteredSum(at::Tensor partial, const RowShares& shares, comm::Communicator& ranks);
  const std::vector<RowPart>& parts() const { return parts_; }  // in the order in which they should be written, this rank's last
  void send(const RowPart& part);                               // is written; may be called again
  at::Tensor sum();                                             // after all of them

 private:
  const bool in_parts_;
  comm::Communicator& ranks_;
  at::Tensor partial_;
  std::vector<RowPart> parts_;
  std::vector<at::Tensor> came_;  // by rank
  std::vector<comm::Pending> pending_;
};

}  // namespace halftone
