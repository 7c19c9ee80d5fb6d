#include "halftone/parallel/tensor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/nn/moe.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/parallel/axes.h"
#include "halftone/parallel/collectives.h"

namespace halftone::parallel {
namespace {

using nn::Linear, nn::Parameter, nn::SplitRule;

const SplitRule* rule_for(std::string_view fqn, std::span<const SplitRule> rules) {
  for (const SplitRule& rule : rules) {
    const bool ends = fqn.ends_with(rule.name);
    if (ends && (fqn.size() == rule.name.size() || fqn[fqn.size() - rule.name.size() - 1] == '.')) return &rule;
  }
  return nullptr;
}

class Cutter {
 public:
  explicit Cutter(const TensorPart& part) : ranks_(part.ranks), rank_(part.rank) {}

  void cut(Parameter& p, int64_t dim, bool uneven = false) {
    p.replicated = false;
    if (p.numel() == 0) return;  // the unused parameter of a tied head
    int64_t& size = p.shape.at(static_cast<size_t>(dim));
    check(uneven || size % ranks_ == 0, "parallelism.tensor_parallel_degree: {} ranks do not divide the {} {} of {}; use a divisor", ranks_,
          size, dim == 0 ? "rows" : "columns", p.fqn);
    const int64_t most = (size + ranks_ - 1) / ranks_, first = std::min(size, rank_ * most);
    p.parts.push_back({dim, first, size});
    size = std::min(size - first, most);
    if (dim == 0) p.weight.first_row = first;
  }

  void cut(Linear& l, const SplitRule& rule) {
    const auto lora = [&](const char* name, auto&& with) {
      l.for_each_parameter([&](Parameter& p) {
        if (p.name == name) with(p);
      });
    };
    check(!l.weight.stored_as || rule.dim == 0 || l.recipe().w_forward.granularity != Granularity::row,
          "parallelism.tensor_parallel_degree: {} keeps one scale per row of {}, whose columns are sharded; set it to 1 or use "
          "another scheme",
          l.recipe().name, l.fqn());
    cut(l.weight, rule.dim, rule.uneven);
    if (rule.dim == 0) {
      if (l.bias != nullptr) cut(*l.bias, 0, rule.uneven);
      lora("lora_u", [&](Parameter& p) { cut(p, 0); });
    } else {
      if (rank_ > 0) l.drop_bias();
      if (l.has_norm()) cut(l.norm()->weight, 0);
      lora("lora_v", [&](Parameter& p) { cut(p, 1); });
    }
    require_blocks(l, l.in_features(), l.out_features());
  }

  void cut(nn::GroupedExperts& experts, std::span<const SplitRule> rules) {
    for (Parameter* w : experts.weights()) {
      const SplitRule* rule = rule_for(w->fqn, rules);
      if (rule != nullptr) cut(*w, rule->dim);
      require_blocks(experts, w->shape[2], w->shape[1]);
    }
    if (rank_ > 0) experts.drop_bias();
  }

 private:
  void require_blocks(const nn::QuantizableLayer& layer, int64_t k, int64_t n) const {
    const int64_t multiple = layer.recipe().dim_multiple;
    check(!layer.recipe().quantized() || (k % multiple == 0 && n % multiple == 0),
          "parallelism.tensor_parallel_degree: {} ranks hold {} x {} of {} each; {} needs multiples of {}", ranks_, n, k, layer.fqn(),
          layer.recipe().name, multiple);
  }

  const int64_t ranks_, rank_;
};

// Gathers rows, or with all rows between layers their gradients; scatters partial sums, or adds them up.
class TensorPort : public nn::Port {
 public:
  TensorPort(comm::Communicator& ranks, const ParallelismConfig& p) : ranks_(ranks), sequence_shards_(p.enable_sequence_parallel), p_(p) {}
  Activation enter(const Activation& x) const override { return sequence_shards_ ? gather_ranks(x, ranks_) : split_work(x, ranks_); }
  at::Tensor leave(const at::Tensor& y) const override { return sequence_shards_ ? scatter_sum(y, ranks_) : sum_ranks(y, ranks_); }
  RowShares shares(nn::Way way, const LinearRecipe& recipe) const override {
    if (!sequence_shards_ || quantization_stats() != nullptr) return {};  // the statistics read full operands
    if (!can_share_rows(recipe)) {
      static std::once_flag told;
      if (p_.enable_async_tensor_parallel)
        std::call_once(told, [&] { log_warning("{}: scales span several rows: GEMMs wait for all shards", recipe.name); });
      return {};
    }
    RowShares shares;
    (way == nn::Way::in ? shares.input : shares.output) = &ranks_, shares.in_parts = p_.enable_async_tensor_parallel;
    return shares;
  }
  at::Tensor own_rows(const at::Tensor& mask, int64_t rows) const override {
    if (mask.size(0) == rows) return mask;
    check(mask.size(0) == rows * ranks_.size(), "padding: {} rows of {} on {} ranks", rows, mask.size(0), ranks_.size());
    return mask.narrow(0, ranks_.index() * rows, rows);
  }
  Copies copies() const override { return {ranks_.size(), ranks_.index()}; }
  at::Tensor column_sums(const at::Tensor& own) const override { return sum_ranks(split_work(own, ranks_), ranks_); }
  LogitColumns logit_columns(const Parameter& table) const override {
    const auto gather = [this](const at::Tensor& own) { return stack_ranks(own, ranks_); };
    const nn::DimPart& rows = table.parts.at(0);
    return {
        gather, rows.first, (rows.whole + ranks_.size() - 1) / ranks_.size(), rows.whole, !p_.disable_loss_parallel, ranks_.index() == 0};
  }

 protected:
  comm::Communicator& ranks_;
  const bool sequence_shards_;

 private:
  const ParallelismConfig p_;
};

// For experts that the ranks hold whole: each rank routes its own share of the tokens. With all rows between layers it takes that share,
// and adds the other ranks' results.
class TokenPort : public TensorPort {
 public:
  using TensorPort::TensorPort;
  Activation enter(const Activation& x) const override {
    if (sequence_shards_) return x.value;
    const int64_t n = x.value.size(0) / ranks_.size();
    check(n * ranks_.size() == x.value.size(0), "experts: {} ranks do not divide {} tokens", ranks_.size(), x.value.size(0));
    return split_work(x, ranks_).narrow(0, ranks_.index() * n, n);
  }
  at::Tensor leave(const at::Tensor& y) const override {
    if (sequence_shards_) return y;
    const int64_t n = y.size(0), before = ranks_.index() * n;
    return sum_ranks(at::constant_pad_nd(y, {0, 0, before, (ranks_.size() - 1) * n - before}), ranks_);
  }
  Copies copies() const override { return {}; }
};

}  // namespace

void split_tensors(nn::Model& model, const TensorPart& part) {
  const nn::ModelSize size = model.size();
  check(size.heads % part.ranks == 0 && size.kv_heads % part.ranks == 0,
        "parallelism.tensor_parallel_degree: {} ranks do not divide the model's {} heads ({} key-value heads); use a divisor of both",
        part.ranks, size.heads, size.kv_heads);
  if (part.ranks == 1) return;
  const std::span<const SplitRule> rules = model.splits();
  Cutter cutter(part);
  model.for_each_module([&](nn::Module& m) {
    auto* linear = dynamic_cast<Linear*>(&m);
    const SplitRule* rule = linear != nullptr ? rule_for(m.fqn(), rules) : nullptr;
    if (rule != nullptr) cutter.cut(*linear, *rule);
    if (auto* experts = dynamic_cast<nn::GroupedExperts*>(&m); experts != nullptr && part.cuts_experts) cutter.cut(*experts, rules);
  });
  model.for_each_parameter([&](Parameter& p) {
    if (p.expert && !part.cuts_experts) p.replicated = false;  // each rank has experts of its own
    if (p.buffer || !p.replicated) return;
    const SplitRule* rule = rule_for(p.fqn, rules);
    if (rule != nullptr && rule->dim != nn::kOfStream) return cutter.cut(p, rule->dim, rule->uneven);
    p.summed = rule == nullptr || p.added || part.sequence_shards;
  });
}

void apply_tensor(nn::Model& model, comm::Communicator& ranks, const ParallelismConfig& p) {
  split_tensors(model, {ranks.size(), ranks.index(), p.enable_sequence_parallel, p.cuts_experts()});
  const auto port = std::make_shared<TensorPort>(ranks, p);
  model.for_each_module([&](nn::Module& m) { m.set_port(port); });
  model.for_each_module([&](nn::Module& m) {
    auto* moe = dynamic_cast<nn::MoE*>(&m);
    if (moe == nullptr) return;
    if (!p.cuts_experts()) return moe->set_port(std::make_shared<TokenPort>(ranks, p));
    if (moe->shared() != nullptr) moe->shared()->set_port(nullptr);  // one gather and one sum with the routed ones
  });
}

void Axes::add_up_parts(nn::ParameterStore& store) {
  if (!tensor_) return;
  std::vector<at::Tensor> gradients;
  for (const nn::ParameterStore::Unit& unit : store.units()) {
    for (const Parameter* p : unit.parameters) {
      if (p->summed) gradients.push_back(unit.flat.grad.narrow(0, p->offset, p->held()));
    }
  }
  if (gradients.empty()) return;
  at::Tensor all = at::cat(gradients);
  tensor_->all_reduce(all).wait();
  int64_t at = 0;
  for (at::Tensor& gradient : gradients) {
    gradient.copy_(all.narrow(0, at, gradient.numel()));
    at += gradient.numel();
  }
}

std::vector<at::Tensor> Axes::counted_gradients(const nn::ParameterStore& store) const {
  std::vector<at::Tensor> gradients;
  for (const nn::ParameterStore::Unit& unit : store.units()) {
    if (first_of_tensor()) {
      gradients.push_back(unit.flat.grad);
      continue;
    }
    int64_t first = 0, end = 0;  // of a run of counted parameters
    const auto put = [&] {
      if (end > first) gradients.push_back(unit.flat.grad.narrow(0, first, end - first));
    };
    for (const Parameter* p : unit.parameters) {
      if (p->replicated) put(), first = p->offset + p->held();
      end = p->offset + p->held();
    }
    put();
  }
  return gradients;
}

void report_idle_tensor(const ParallelismConfig& p) {
  if (p.enable_async_tensor_parallel && (p.tensor_parallel_degree == 1 || !p.enable_sequence_parallel))
    log_warning("[compat] parallelism.enable_async_tensor_parallel: without effect, it overlaps the collectives of sequence shards");
}

}  // namespace halftone::parallel
