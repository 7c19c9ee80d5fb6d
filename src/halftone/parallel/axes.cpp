#include "halftone/parallel/axes.h"

#include <fmt/format.h>

#include "halftone/parallel/expert.h"
#include "halftone/parallel/tensor.h"

namespace halftone::parallel {

Axes::Axes(comm::Watch& watch, const Mesh& mesh, const ParallelismConfig& parallelism, const DataParallelOptions& options)
    : parallelism_(parallelism), device_(options.device) {
  const auto open = [&](const char* axis) { return communicator(watch, axis, mesh.ranks(watch.rank(), axis), options.device); };
  tensor_ = open("tp"), context_ = open("cp"), experts_ = open("ep");
  data_ = std::make_unique<DataParallel>(watch, mesh, options);
  if (mesh.size("pp") > 1) pipeline_ = std::make_unique<Pipeline>(watch, mesh, parallelism, options.device);
}

nn::MicroBatch Axes::own_part(const nn::MicroBatch& batch) const {
  return context_ == nullptr || batch.input.documents.port ? batch : own_places(batch, *context_, rows_, device_);
}

std::vector<std::string_view> Axes::holders(const nn::Parameter& p) const {
  std::vector<std::string_view> axes = {"dp_replicate"};
  if (!p.shard) axes.emplace_back(p.expert ? "efsdp" : "fsdp");
  if (p.replicated) axes.emplace_back("tp");
  return axes;
}

std::string Axes::text() const {
  std::string text = (pipeline_ ? pipeline_->text() + "; " : "") + data_->text();
  if (tensor_)
    text += fmt::format("; TP: {} ranks{}", tensor_->size(),
                        !parallelism_.enable_sequence_parallel      ? ""
                        : parallelism_.enable_async_tensor_parallel ? " with sequence shards, collectives overlap with GEMMs"
                                                                    : " with sequence shards");
  if (experts_) text += fmt::format("; EP: experts sharded over {} ranks", experts_->size());
  if (context_) text += fmt::format("; CP: each row sharded over {} ranks", context_->size());
  return text;
}

void apply(nn::Model& model, Axes& axes) {
  if (axes.experts_) apply_experts(model, *axes.experts_, axes.parallelism_);
  if (axes.tensor_) apply_tensor(model, *axes.tensor_, axes.parallelism_);
  axes.rows_ = context_options(axes.parallelism_, model.size().window);
}

}  // namespace halftone::parallel
