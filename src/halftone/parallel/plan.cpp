#include "halftone/parallel/plan.h"

namespace halftone::parallel {

Plan::Plan(comm::Watch& watch, const comm::Mesh& mesh, const ParallelismConfig& parallelism, const DataParallelOptions& options)
    : mesh_(mesh), rank_(watch.rank()) {
  const auto open = [&](const char* axis) { return communicator(watch, axis, mesh.ranks(rank_, axis), options.device); };
  tensor_ = open("tp"), context_ = open("cp");
  groups_.tensor = tensor_.get(), groups_.context = context_.get(), groups_.sequence_shards = parallelism.enable_sequence_parallel;
  data_ = std::make_unique<DataParallel>(watch, mesh, options);
}

std::string Plan::text() const { return data_->text(); }

}  // namespace halftone::parallel
