#pragma once
#include "halftone/comm/communicator.h"
#include "halftone/config/parallelism_config.h"
#include "halftone/nn/model.h"

// Tensor and sequence parallelism (docs/parallel/tensor.md): ranks that compute each layer together, on parts of its heads, widths and
// vocabulary.
namespace halftone::parallel {

// One of these ranks.
struct TensorPart {
  int64_t ranks = 1, rank = 0;
  bool sequence_shards = true;  // between layers a rank has 1/n of the tokens (Korthikanti et al. 2022); false: all
  bool cuts_experts = true;     // the widths of experts are split too; false: the ranks hold different experts
};

// Splits the parameters of a model by its rules, after its recipes are set and before materialisation. Error naming a parameter that
// cannot be split.
void split_tensors(nn::Model& model, const TensorPart& part);
// The same, and installs ports that gather and scatter rows over the ranks, which must outlive the model.
void apply_tensor(nn::Model& model, comm::Communicator& ranks, const ParallelismConfig& parallelism);

// Logs options of the axis that have no effect.
void report_idle_tensor(const ParallelismConfig& parallelism);

}  // namespace halftone::parallel
