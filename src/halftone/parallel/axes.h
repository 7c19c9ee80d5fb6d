#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/parallel/context.h"
#include "halftone/parallel/pipeline.h"

namespace halftone::parallel {

// The axes of the mesh (docs/parallel/mesh.md) as one of its ranks uses them: who shares weights and rows with it, and the communicators.
class Axes {
 public:
  // All ranks call it. The watch must outlive it.
  Axes(comm::Watch& watch, const Mesh& mesh, const ParallelismConfig& parallelism, const DataParallelOptions& options);

  DataParallel& data() { return *data_; }
  Pipeline* pipeline() const { return pipeline_.get(); }          // null: one stage
  comm::Communicator* context() const { return context_.get(); }  // null: full rows
  // This rank's part of full rows; the batch itself if rows are not split, or these are split already.
  nn::MicroBatch own_part(const nn::MicroBatch& batch) const;
  // Whether this rank reports for all ranks with the same tokens, and whether its sums of losses and labels count: others may have the
  // same.
  bool counts_rows() const { return first_of_tensor() && (!pipeline_ || pipeline_->first()); }
  bool counts_loss() const { return first_of_tensor() && (!pipeline_ || pipeline_->last()); }
  // All-reduces the gradients of which each rank of the tensor group has a partial sum, in the units' buffers.
  void add_up_parts(nn::ParameterStore& store);
  // The gradients whose squares this rank contributes to the norm: replicated ones are counted on one rank only.
  std::vector<at::Tensor> counted_gradients(const nn::ParameterStore& store) const;
  // The mesh axes along which ranks hold replicas of a parameter.
  std::vector<std::string_view> holders(const nn::Parameter& p) const;
  std::string text() const;  // for the log

 private:
  friend void apply(nn::Model& model, Axes& axes);
  bool first_of_tensor() const { return tensor_ == nullptr || tensor_->index() == 0; }

  ParallelismConfig parallelism_;
  at::Device device_;
  std::unique_ptr<comm::Communicator> tensor_, context_, experts_;
  ContextOptions rows_;  // how rows are split
  std::unique_ptr<DataParallel> data_;
  std::unique_ptr<Pipeline> pipeline_;
};

// Splits a model and installs the ports of tensor and expert parallelism, after its recipes are set and before materialisation. Error if
// an axis cannot split it. The axes must outlive the model.
void apply(nn::Model& model, Axes& axes);

}  // namespace halftone::parallel
