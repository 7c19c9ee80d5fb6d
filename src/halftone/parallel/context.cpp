#include "halftone/parallel/context.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "halftone/base/error.h"

namespace halftone::parallel {

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
  own.valid_labels = own.labels.ne(-100).sum().item<int64_t>();
  own.first_row = rows.first_row + ranks.index() * own.input.tokens.numel();
  return own;
}

}  // namespace halftone::parallel
