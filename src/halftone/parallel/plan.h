#pragma once
#include <memory>
#include <string>
#include <vector>

#include "halftone/nn/groups.h"
#include "halftone/parallel/pipeline.h"

namespace halftone::parallel {

// How a process works with the others on the mesh (docs/parallel/mesh.md): who shares weights and rows with it, and the communicators.
class Plan {
 public:
  // All ranks call it. The watch must outlive it.
  Plan(comm::Watch& watch, const comm::Mesh& mesh, const ParallelismConfig& parallelism, const DataParallelOptions& options);

  DataParallel& data() { return *data_; }
  Pipeline* pipeline() const { return pipeline_.get(); }  // null: one stage
  const nn::Groups& groups() const { return groups_; }
  // Whether this rank's sums of losses and labels count: others may compute the same.
  bool counts_loss() const { return groups_.first_of_tensor() && (!pipeline_ || pipeline_->last()); }
  // All-reduces the gradients of which each rank of the tensor group has a partial sum, in the units' buffers.
  void add_up_parts(nn::ParameterStore& store);
  // The gradients whose squares this rank contributes to the norm: replicated ones are counted on one rank only.
  std::vector<at::Tensor> counted_gradients(const nn::ParameterStore& store) const;
  std::string text() const;  // for the log

 private:
  std::unique_ptr<comm::Communicator> tensor_, context_, experts_;
  nn::Groups groups_;
  std::unique_ptr<DataParallel> data_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace halftone::parallel
