#include "halftone/nn/split.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/nn/moe.h"

namespace halftone::nn {
namespace {

const SplitRule* rule_for(std::string_view fqn, std::span<const SplitRule> rules) {
  for (const SplitRule& rule : rules) {
    const bool ends = fqn.ends_with(rule.name);
    if (ends && (fqn.size() == rule.name.size() || fqn[fqn.size() - rule.name.size() - 1] == '.')) return &rule;
  }
  return nullptr;
}

class Cutter {
 public:
  explicit Cutter(const TensorPart& part) : part_(part), ranks_(part.ranks), rank_(part.rank) {}

  void cut(Parameter& p, int64_t dim, bool uneven = false) {
    p.shared_by_tensor_group = false;
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
      if (l.has_norm()) {
        cut(l.norm()->weight, 0);
        if (part_.processes != nullptr) l.norm()->share(*part_.processes, l.norm()->weight.parts[0].whole);
      }
      lora("lora_v", [&](Parameter& p) { cut(p, 1); });
    }
    require_blocks(l, l.in_features(), l.out_features());
  }

  void cut(GroupedExperts& experts, std::span<const SplitRule> rules) {
    for (Parameter* w : experts.weights()) {
      const SplitRule* rule = rule_for(w->fqn, rules);
      if (rule != nullptr) cut(*w, rule->dim);
      require_blocks(experts, w->shape[2], w->shape[1]);
    }
    if (rank_ > 0) experts.drop_bias();
  }

 private:
  void require_blocks(const QuantizableLayer& layer, int64_t k, int64_t n) const {
    const int64_t multiple = layer.recipe().dim_multiple;
    check(!layer.recipe().quantized() || (k % multiple == 0 && n % multiple == 0),
          "parallelism.tensor_parallel_degree: {} ranks hold {} x {} of {} each; {} needs multiples of {}", ranks_, n, k, layer.fqn(),
          layer.recipe().name, multiple);
  }

  const TensorPart& part_;
  const int64_t ranks_, rank_;
};

}  // namespace

void split(Module& model, std::span<const SplitRule> rules, const TensorPart& part) {
  if (part.ranks == 1) return;
  Cutter cutter(part);
  model.for_each_module([&](Module& m) {
    auto* linear = dynamic_cast<Linear*>(&m);
    const SplitRule* rule = linear != nullptr ? rule_for(m.fqn(), rules) : nullptr;
    if (rule != nullptr) cutter.cut(*linear, *rule);
    if (auto* experts = dynamic_cast<GroupedExperts*>(&m); experts != nullptr && part.cuts_experts) cutter.cut(*experts, rules);
  });
  model.for_each_parameter([&](Parameter& p) {
    if (p.expert && !part.cuts_experts) p.shared_by_tensor_group = false;  // each rank has experts of its own
    if (p.buffer || !p.shared_by_tensor_group) return;
    const SplitRule* rule = rule_for(p.fqn, rules);
    if (rule != nullptr && rule->dim != kOfStream) return cutter.cut(p, rule->dim, rule->uneven);
    p.summed = rule == nullptr || p.added || part.sequence_shards;
  });
}

}  // namespace halftone::nn
