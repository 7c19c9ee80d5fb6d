#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "halftone/comm/communicator.h"

// Differentiable collectives on rows (dim 0) of tensors on the communicator's device. All its ranks must call them in the same order, in
// backward too.
namespace halftone::parallel {

// All-gather without autograd: [...] of every rank -> [size, ...].
at::Tensor stack_ranks(const at::Tensor& x, comm::Communicator& ranks);
// All-gather: [n, ...] of every rank -> [size * n, ...] in rank order; backward is a reduce-scatter of the gradients.
at::Tensor gather_ranks(const at::Tensor& x, comm::Communicator& ranks);
// Reduce-scatter: [size * n, ...] -> this rank's [n, ...] of the sum over ranks; backward is an all-gather.
at::Tensor scatter_sum(const at::Tensor& x, comm::Communicator& ranks);
// All-reduce whose result every rank uses for the same computation: the gradient passes through unchanged.
at::Tensor sum_ranks(const at::Tensor& x, comm::Communicator& ranks);
// Identity on x, which is the same on all ranks, each of which computes a different part from it: backward all-reduces the gradients.
at::Tensor split_work(const at::Tensor& x, comm::Communicator& ranks);
// Rows to and from each rank, as comm::Communicator::all_to_all; backward sends them the other way. Rows of x past those sent stay and
// get zero gradients; the result has `rows` rows, zeros after those received (-1: no extra rows).
at::Tensor exchange_rows(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                         comm::Communicator& ranks, int64_t rows = -1);

}  // namespace halftone::parallel
