#include "halftone/parallel/plan.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

namespace halftone::parallel {

Plan::Plan(comm::Watch& watch, const comm::Mesh& mesh, const ParallelismConfig& parallelism, const DataParallelOptions& options) {
  const auto open = [&](const char* axis) { return communicator(watch, axis, mesh.ranks(watch.rank(), axis), options.device); };
  tensor_ = open("tp"), context_ = open("cp"), experts_ = open("ep");
  groups_.tensor = tensor_.get(), groups_.context = context_.get(), groups_.experts = experts_.get();
  groups_.sequence_shards = parallelism.enable_sequence_parallel, groups_.split_loss = !parallelism.disable_loss_parallel;
  groups_.cuts_experts = parallelism.cuts_experts();
  groups_.in_parts = groups_.sequence_shards && parallelism.enable_async_tensor_parallel;
  groups_.expert_capacity = parallelism.expert_parallel_capacity;
  const std::string& format = parallelism.expert_parallel_dispatch_dtype;
  if (!format.empty()) groups_.expert_format = find_linear_recipe(format == "mxfp8" ? "mxfp8_e4m3" : format)->x_forward;
  data_ = std::make_unique<DataParallel>(watch, mesh, options);
  if (mesh.size("pp") > 1) pipeline_ = std::make_unique<Pipeline>(watch, mesh, parallelism, options.device);
}

void Plan::add_up_parts(nn::ParameterStore& store) {
  if (!tensor_) return;
  std::vector<at::Tensor> gradients;
  for (const nn::ParameterStore::Unit& unit : store.units()) {
    for (const nn::Parameter* p : unit.parameters) {
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

std::vector<at::Tensor> Plan::counted_gradients(const nn::ParameterStore& store) const {
  std::vector<at::Tensor> gradients;
  for (const nn::ParameterStore::Unit& unit : store.units()) {
    if (groups_.first_of_tensor()) {
      gradients.push_back(unit.flat.grad);
      continue;
    }
    int64_t first = 0, end = 0;  // of a run of counted parameters
    const auto put = [&] {
      if (end > first) gradients.push_back(unit.flat.grad.narrow(0, first, end - first));
    };
    for (const nn::Parameter* p : unit.parameters) {
      if (!p->shared_by_tensor_group) {
        end = p->offset + p->held();
        continue;
      }
      put();
      first = end = p->offset + p->held();
    }
    put();
  }
  return gradients;
}

std::string Plan::text() const {
  std::string text = (pipeline_ ? pipeline_->text() + "; " : "") + data_->text();
  if (tensor_)
    text += fmt::format("; TP: {} ranks{}", tensor_->size(),
                        groups_.in_parts          ? " with sequence shards, collectives overlap with GEMMs"
                        : groups_.sequence_shards ? " with sequence shards"
                                                  : "");
  if (experts_) text += fmt::format("; EP: experts sharded over {} ranks", experts_->size());
  if (context_) text += fmt::format("; CP: each row sharded over {} ranks", context_->size());
  return text;
}

}  // namespace halftone::parallel
