#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "halftone/comm/communicator.h"

// Collectives as ops of the graph, on rows (dim 0) of tensors of the communicator's device. All of its ranks call them in the same order,
// in backward likewise.
namespace halftone {

// [n, ...] of every rank -> [size * n, ...], by rank; in backward the ranks' gradients are added up, and each keeps its part.
at::Tensor gather_ranks(const at::Tensor& x, comm::Communicator& ranks);
// [size * n, ...] -> this rank's [n, ...] of the ranks' sum; in backward gathered.
at::Tensor scatter_sum(const at::Tensor& x, comm::Communicator& ranks);
// The ranks' sum, of which each computes the same from there on: its gradient goes to each as it is.
at::Tensor sum_ranks(const at::Tensor& x, comm::Communicator& ranks);
// x itself, which is the same on all ranks, where these compute different parts from it: in backward their gradients are added up.
at::Tensor split_work(const at::Tensor& x, comm::Communicator& ranks);
// Rows to and from each rank, as comm::Communicator::all_to_all; in backward the other way. Rows of x behind those stay, with gradients of
// zero; the result has `rows` rows, zeros behind those that come (-1: none).
at::Tensor exchange_rows(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                         comm::Communicator& ranks, int64_t rows = -1);

}  // namespace halftone
