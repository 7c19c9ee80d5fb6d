#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/comm/communicator.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"
#include "halftone/parallel/mesh.h"

namespace halftone::parallel {

// Among these ranks of the job; null if this rank is the only one.
std::unique_ptr<comm::Communicator> communicator(comm::Watch& watch, const char* name, std::vector<int64_t> ranks, at::Device device);

// fsdp_reshard_after_forward: by default a pipeline's weights stay gathered, because its micro-batches read them in turn.
bool reshards(const ParallelismConfig& parallelism);

struct DataParallelOptions {
  at::Device device = at::kCPU;
  at::ScalarType reduce = at::kFloat;  // training.mixed_precision_reduce: dtype in which gradients are reduced; they are kept in float32
  bool reshard = true;                 // free gathered weights and reduce gradients after each pass; false: keep both
};

// Data parallelism over the mesh's `fsdp` and `dp_replicate` axes. The ranks of `fsdp` shard every parameter, its gradient and its
// moments by rows (ZeRO-3, Rajbhandari et al. 2020; FSDP, Zhao et al. 2023); those of `dp_replicate` hold replicas and all-reduce
// gradients (with one shard: DDP; with both: HSDP). Expert-parallel routed experts are sharded over the ranks of `efsdp`, which hold the
// same experts: each of the two is a domain, with its own communicators and slots.
//
// Gathered weights lie in slots, adjacent parameters next to each other as in one process, so that one GEMM may read them jointly. Blocks
// alternate between two slots, so that one is gathered while another is read; embedding and head share a third. Full gradients have slots
// of their own, and are reduce-scattered into the shards' while the backward pass of the next unit runs.
class DataParallel : public nn::UnitAccess {
 public:
  // All ranks call it. Mesh and watch outlive it.
  DataParallel(comm::Watch& watch, const Mesh& mesh, const DataParallelOptions& options);

  nn::Shards shards() const { return dense_.shards(); }
  nn::Shards expert_shards() const { return experts_.shards(); }
  int64_t ranks() const { return world_ ? world_->size() : 1; }
  bool sharded() const { return dense_.sharded() || experts_.sharded(); }  // any parameter
  // Points the weights of a model, whose store was materialised with these shards, at the gathered tensors.
  void attach(nn::Model& model, nn::ParameterStore& store, const nn::StorageOptions& storage);

  // Order within a step: begin_step, begin_pass and the pass of each micro-batch, finish_gradients, add_up.
  void begin_step();
  void begin_pass(bool last) { last_pass_ = last; }
  void before_forward(int64_t unit) override;
  void before_backward(int64_t unit) override;
  void after_backward(int64_t unit) override;
  void finish_gradients();  // the store's gradients are complete from here on
  // All-reduces numbers, fp64 [2] on the device: this rank's sum of losses over its `labels` valid labels, and its sum of squared
  // gradients.
  void add_up(at::Tensor& numbers, int64_t labels);
  const at::Tensor& rank_losses() const { return rank_losses_; }  // from add_up: each rank's mean loss, fp64 [ranks] on the device
  void sum(at::Tensor& numbers);                                  // all-reduce over all ranks
  void largest(at::Tensor& numbers);                              // max all-reduce over the shards
  std::string text() const;                                       // for the log: what is sharded, and how

 private:
  struct Group;
  // The ranks that shard the same parameters. Null communicators: this rank alone.
  struct Domain {
    std::unique_ptr<comm::Communicator> gathers, reductions;
    bool sharded() const { return gathers != nullptr; }
    nn::Shards shards() const { return sharded() ? nn::Shards{gathers->size(), gathers->index()} : nn::Shards{}; }
  };
  struct Slot {
    at::Tensor weights, gradients;                    // flat; padded copies of uneven parameters for collectives follow the others
    at::Tensor part;                                  // receives a reduction that is then added or widened; allocated for the first one
    at::Tensor rounded;                               // gradients in the reduce dtype, if that is not float32
    Group *holds = nullptr, *gradients_of = nullptr;  // owners of the slot's weights (gathered or in flight) and gradients
  };
  struct Reduction {
    comm::Pending pending;
    at::Tensor part;  // fp32 or bf16, flat: the received shard; undefined if received directly in the store's gradient
  };
  // Units of the store that are gathered and reduced together.
  struct Group {
    const Domain* domain = nullptr;
    std::vector<nn::ParameterStore::Unit*> units;
    std::vector<nn::Parameter*> parameters;  // with gathered weights or gradients
    Slot* slot = nullptr;
    std::vector<at::Tensor> whole, parts;  // tensors of the all-gather
    // For parameters whose rows do not fill all shards: the tensor gathered or reduced, [rows of all shards], and its valid rows.
    std::vector<std::pair<at::Tensor, at::Tensor>> uneven_weights, uneven_gradients;
    std::vector<at::Tensor> codes, own_codes;  // the same for stored weights, which stay gathered until they change
    bool codes_are_old = true;
    std::vector<at::Tensor> full_gradients, gradients;  // tensors of the reduce-scatter; the latter are views of the store's
    bool begun = false, reduced = false;                // in this step
    bool last = false;                                  // the reduction in flight is the step's last
    std::optional<comm::Pending> gather;
    std::vector<Reduction> reductions;
    std::vector<Reduction> sums;  // all-reduces over replicas, one per unit
  };
  const std::vector<Group*>& groups_of(int64_t unit) const {
    return tied_ && unit == head_ ? places_.front() : places_[static_cast<size_t>(unit)];
  }
  void assign_slots(const nn::StorageOptions& storage);
  void bind(Group& group, const nn::StorageOptions& storage);
  void gather(Group& group);
  void await(Group& group);
  void gather_unit(int64_t unit, int64_t next);  // and prefetches those of the next one
  void begin_gradients(Group& group);
  void reduce(Group& group);
  void add_over_replicas(Group& group);
  void settle(Group& group);
  void weights_changed();  // invalidates gathered weights

  DataParallelOptions options_;
  Domain dense_, experts_;
  std::unique_ptr<comm::Communicator> replicas_, world_;  // null if they would have one rank
  bool first_replica_ = true;
  int64_t head_ = 0;   // its position; the embedding's is 0
  bool tied_ = false;  // the head reads the embedding's weights, which are in the same group
  std::deque<Group> groups_;
  std::vector<std::vector<Group*>> places_;  // by unit position; empty if another pipeline stage has the unit
  std::vector<std::unique_ptr<Slot>> slots_;
  bool last_pass_ = false;
  at::Tensor rank_losses_;
};

}  // namespace halftone::parallel
