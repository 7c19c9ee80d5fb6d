#include "halftone/parallel/collectives.h"

#include <ATen/ops/empty.h>

#include <functional>
#include <numeric>

#include "halftone/ops/autograd_node.h"

namespace halftone::parallel {
namespace {

using Move = at::Tensor (*)(const at::Tensor&, comm::Communicator&);

at::Tensor with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, x.options());
}

at::Tensor gathered(const at::Tensor& x, comm::Communicator& ranks) {
  at::Tensor out = with_rows(x, ranks.size() * x.size(0));
  ranks.all_gather(out, x.contiguous()).wait();
  return out;
}

at::Tensor scattered(const at::Tensor& x, comm::Communicator& ranks) {
  check(x.size(0) % ranks.size() == 0, "scatter_sum: expected rows for {} ranks, found {}", ranks.size(), x.size(0));
  at::Tensor out = with_rows(x, x.size(0) / ranks.size());
  ranks.reduce_scatter(out, x.contiguous()).wait();
  return out;
}

at::Tensor summed(const at::Tensor& x, comm::Communicator& ranks) {
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  ranks.all_reduce(out).wait();
  return out;
}

at::Tensor same(const at::Tensor& x, comm::Communicator&) { return x.alias(); }

at::Tensor moved(const char* name, const at::Tensor& x, comm::Communicator& ranks, Move forward, Move backward) {
  return linear_op(
      name, x, [&](const at::Tensor& t) { return forward(t, ranks); },
      [&ranks, backward](const at::Tensor& g) { return backward(g, ranks); });
}

at::Tensor exchanged(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                     comm::Communicator& ranks, int64_t rows) {
  const auto sum = [](const std::vector<int64_t>& n) { return std::accumulate(n.begin(), n.end(), int64_t{0}); };
  const int64_t come = sum(out_rows);
  at::Tensor out = with_rows(x, rows), there = out.narrow(0, 0, come);
  ranks.all_to_all(there, x.contiguous().narrow(0, 0, sum(in_rows)), out_rows, in_rows).wait();
  out.narrow(0, come, rows - come).zero_();
  return out;
}

}  // namespace

at::Tensor stack_ranks(const at::Tensor& x, comm::Communicator& ranks) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), ranks.size());
  at::Tensor all = at::empty(shape, x.options());
  ranks.all_gather(all, x.contiguous()).wait();
  return all;
}

at::Tensor gather_ranks(const at::Tensor& x, comm::Communicator& ranks) { return moved("gather_ranks", x, ranks, gathered, scattered); }

at::Tensor scatter_sum(const at::Tensor& x, comm::Communicator& ranks) { return moved("scatter_sum", x, ranks, scattered, gathered); }

at::Tensor sum_ranks(const at::Tensor& x, comm::Communicator& ranks) { return moved("sum_ranks", x, ranks, summed, same); }

at::Tensor split_work(const at::Tensor& x, comm::Communicator& ranks) { return moved("split_work", x, ranks, same, summed); }

at::Tensor exchange_rows(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                         comm::Communicator& ranks, int64_t rows) {
  if (rows < 0) rows = std::accumulate(out_rows.begin(), out_rows.end(), int64_t{0});
  return linear_op(
      "exchange_rows", x, [&](const at::Tensor& t) { return exchanged(t, out_rows, in_rows, ranks, rows); },
      [out_rows, in_rows, &ranks, given = x.size(0)](const at::Tensor& g) { return exchanged(g, in_rows, out_rows, ranks, given); });
}

}  // namespace halftone::parallel
