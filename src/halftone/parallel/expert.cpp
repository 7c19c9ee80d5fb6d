#include "halftone/parallel/expert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/operand.h"
#include "halftone/parallel/collectives.h"

namespace halftone::parallel {
namespace {

int64_t sum(const std::vector<int64_t>& n) { return std::accumulate(n.begin(), n.end(), int64_t{0}); }

at::Tensor row_to_each(const at::Tensor& rows, comm::Communicator& ranks) {
  at::Tensor came = at::empty_like(rows);
  const std::vector<int64_t> ones(static_cast<size_t>(ranks.size()), 1);
  ranks.all_to_all(came, rows.contiguous(), ones, ones).wait();
  return came;
}

// Document ids of the received rows, for results independent of other documents (ExpertRows): unique within a rank and across ranks.
void send_documents(ExpertExchange& e, const ExpertRows& placed) {
  const at::Tensor token = at::arange(placed.tokens, placed.source.options());
  const at::Tensor document = token.floor_divide(placed.tokens_in_row) * placed.tokens_in_row + placed.documents;
  const at::Tensor source = e.sent.source.clamp_min(0).floor_divide(placed.top_k).to(at::kLong);
  at::Tensor came = exchange_rows(document.index_select(0, source).unsqueeze(1), e.received_rows, e.sent_rows, *e.ranks, e.received.tokens);
  const auto ranks = static_cast<int64_t>(e.received_rows.size());
  check(placed.tokens <= first_document(1, ranks), "experts: {} ranks separate documents of at most {} tokens per micro-batch, found {}",
        ranks, first_document(1, ranks), placed.tokens);
  int64_t first = 0;
  for (size_t r = 0; r < e.received_rows.size(); ++r) {
    came.narrow(0, first, e.received_rows[r]).add_(first_document(static_cast<int64_t>(r), ranks));
    first += e.received_rows[r];
  }
  e.received.documents = came.squeeze(1), e.received.tokens_in_row = e.received.tokens;
}

// Sends tokens as codes and decodes them on arrival.
at::Tensor send_codes(const at::Tensor& x, const ExpertExchange& e) {
  CopyRequest request;
  request.spec = e.format, request.codes = request.block_scales = true;
  Operand o = quantize(x, &request, nullptr).row;
  const at::Tensor token = e.sent.source.clamp_min(0).floor_divide(e.sent.top_k).to(at::kLong);
  for (at::Tensor Operand::*part : {&Operand::codes, &Operand::scales})
    o.*part = exchange_rows((o.*part).index_select(0, token), e.received_rows, e.sent_rows, *e.ranks, e.received.tokens);
  o.rows = e.received.tokens;
  return decode(o, gemm::Decode::everything, x.scalar_type());
}

}  // namespace

ExpertExchange plan_exchange(const ExpertRows& placed, const at::Tensor& expert, comm::Communicator& ranks, double capacity,
                             const OperandSpec& format) {
  const int64_t all = placed.experts, size = ranks.size(), own = all / size, rows = placed.tokens * placed.top_k;
  check(all % size == 0, "experts: {} ranks cannot share {} experts", size, all);
  const at::TensorOptions ints = placed.counts.options();
  ExpertExchange e;
  e.ranks = &ranks, e.sent = placed, e.format = format;
  e.sent.order = at::Tensor();
  // Rows in expert order, without the padding of their groups.
  const at::Tensor ends = placed.counts.cumsum(0, at::kInt), starts = ends - placed.counts;
  const at::Tensor chosen = expert.flatten().to(at::kLong), goes = placed.some_stay ? chosen.lt(all) : at::Tensor();
  const at::Tensor of_row = placed.some_stay ? chosen.clamp_max(all - 1) : chosen, shift = placed.offsets.narrow(0, 0, all) - starts;
  at::Tensor slot = placed.slot.flatten() - shift.index_select(0, of_row), counts = placed.counts.view({size, own}), local;
  const bool spare = capacity > 0 || placed.some_stay;  // the last row: zeros, for what does not travel
  if (capacity == 0) {
    e.sent.rows = rows + (spare ? 1 : 0);
    if (goes.defined()) slot = at::where(goes, slot, rows);
    const at::Tensor came = row_to_each(counts, ranks);
    if (counts.is_meta()) {  // of a dry run: even shares
      e.sent_rows = e.received_rows = std::vector<int64_t>(static_cast<size_t>(size), rows / size);
      e.sent_rows.back() += rows % size, e.received_rows.back() += rows % size;
    } else {
      const at::Tensor sums = at::stack({counts.sum(1), came.sum(1)}).to(at::kCPU);
      const auto* n = sums.const_data_ptr<int64_t>();
      e.sent_rows.assign(n, n + size), e.received_rows.assign(n + size, n + 2 * size);
    }
    const int64_t total = sum(e.received_rows);
    // The GEMMs get one row of zeros rather than an empty matrix.
    local = total == 0 ? at::zeros({1}, ints)
                       : at::repeat_interleave(came.flatten(), std::optional<int64_t>(total)).remainder(own).to(at::kInt);
    e.received = place_experts(local.unsqueeze(1).contiguous(), own);
  } else {
    const auto room = static_cast<int64_t>(std::ceil(capacity * static_cast<double>(rows) / static_cast<double>(size)));
    e.sent.rows = size * room + 1;
    e.sent_rows = e.received_rows = std::vector<int64_t>(static_cast<size_t>(size), room);
    const at::Tensor first = starts.view({size, own}).narrow(1, 0, 1), rank = of_row.floor_divide(own);
    const at::Tensor place = slot - first.flatten().index_select(0, rank);
    at::Tensor fits = place < room;
    e.dropped = (goes.defined() ? fits.logical_not().logical_and_(goes) : fits.logical_not()).sum();
    if (goes.defined()) fits = fits.logical_and_(goes);
    slot = at::where(fits, rank * room + place, size * room);
    e.kept = fits.view_as(expert).to(at::kFloat);
    counts = (ends.view({size, own}) - first).clamp_max(room) - (starts.view({size, own}) - first).clamp_max(room);
    const at::Tensor came = row_to_each(counts, ranks).cumsum(1);
    const at::Tensor places = at::arange(room, came.options()).expand({size, room}).contiguous();
    local = at::searchsorted(came, places, false, true).to(at::kInt);
    e.received = place_experts(local.view({-1, 1}), own, true);  // places without a row are of none
  }
  e.sent.source = at::full({e.sent.rows}, -1, ints);
  e.sent.source.scatter_(0, slot.to(at::kLong), at::arange(rows, ints));
  if (spare) e.sent.source.narrow(0, e.sent.rows - 1, 1).fill_(-1);
  e.sent.slot = slot.to(at::kInt).view_as(expert).contiguous();
  if (placed.documents.defined()) send_documents(e, placed);
  return e;
}

at::Tensor send_rows(const at::Tensor& x, const ExpertExchange& e) {
  if (e.format.quantized()) {
    return linear_op(
        "send_rows", x, [&](const at::Tensor& t) { return send_codes(t, e); },
        [e](const at::Tensor& g) { return sum_rows(exchange_rows(g, e.sent_rows, e.received_rows, *e.ranks, e.sent.rows), e.sent); });
  }
  return exchange_rows(gather_rows(x, e.sent), e.received_rows, e.sent_rows, *e.ranks, e.received.tokens);
}

at::Tensor return_rows(const at::Tensor& y, const ExpertExchange& e) {
  return exchange_rows(y, e.sent_rows, e.received_rows, *e.ranks, e.sent.rows);
}

void split_experts(nn::Module& model, int64_t index, int64_t ranks) {
  model.for_each_module([&](nn::Module& m) {
    auto* moe = dynamic_cast<nn::MoE*>(&m);
    if (moe == nullptr) return;
    check(moe->shape().routing.experts % ranks == 0,
          "parallelism.expert_parallel_degree must divide the model's num_experts (model.overrides), found {} and {}", ranks,
          moe->shape().routing.experts);
    moe->experts().split(index, ranks);
  });
}

void apply_experts(nn::Module& model, comm::Communicator& ranks, const ParallelismConfig& p) {
  split_experts(model, ranks.index(), ranks.size());
  OperandSpec format;
  const std::string& name = p.expert_parallel_dispatch_dtype;
  if (!name.empty()) format = find_linear_recipe(name == "mxfp8" ? "mxfp8_e4m3" : name)->x_forward;
  const auto port = [&ranks, format, capacity = p.expert_parallel_capacity](const ExpertRows& placed, const at::Tensor& expert) {
    const auto e = std::make_shared<const ExpertExchange>(plan_exchange(placed, expert, ranks, capacity, format));
    return nn::Dispatch{e->received, e->kept, e->dropped, [e](const at::Tensor& x) { return send_rows(x, *e); },
                        [e](const at::Tensor& y, const at::Tensor& gates) { return combine_rows(return_rows(y, *e), gates, e->sent); }};
  };
  model.for_each_module([&](nn::Module& m) {
    if (auto* moe = dynamic_cast<nn::MoE*>(&m)) moe->set_dispatch(port);
  });
}

void report_idle_experts(const ParallelismConfig& p) {
  if (p.expert_parallel_degree == 1 && (p.expert_parallel_capacity > 0 || !p.expert_parallel_dispatch_dtype.empty()))
    log_warning(
        "[compat] parallelism.expert_parallel_capacity, parallelism.expert_parallel_dispatch_dtype: without effect, every rank holds all "
        "experts");
}

}  // namespace halftone::parallel
