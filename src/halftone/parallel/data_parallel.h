#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/comm/communicator.h"
#include "halftone/comm/mesh.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/nn/pass.h"

namespace halftone::parallel {

// Among these ranks of the job; null where they are this one alone.
std::unique_ptr<comm::Communicator> communicator(comm::Watch& watch, const char* name, std::vector<int64_t> ranks, at::Device device);

// fsdp_reshard_after_forward: by default a pipeline's weights stay gathered, which its micro-batches read in turn.
bool reshards(const ParallelismConfig& parallelism);

struct DataParallelOptions {
  at::Device device = at::kCPU;
  at::ScalarType reduce = at::kFloat;  // training.mixed_precision_reduce: in which gradients travel; they are kept in float32
  bool reshard = true;                 // gathered weights go after each pass and gradients are reduced after each; else both stay
};

// Data parallelism over the mesh's `fsdp` and `dp_replicate` axes. The ranks of `fsdp` share every parameter, its gradient and its moments
// out by rows (ZeRO-3, Rajbhandari et al. 2020; FSDP, Zhao et al. 2023); those of `dp_replicate` hold the same and add up gradients (with
// one shard: DDP; with both: HSDP). Routed experts that the ranks of `ep` have parts of are shared out among those of `efsdp`, which have
// the same part: each of the two is a domain, with communicators and slots of its own.
//
// Gathered weights lie in slots, parameter after parameter as in one process, which may multiply by neighbours at once: blocks take turns
// in two, so that one is gathered while another is read; embedding and head share a third. Full gradients lie in slots of their own, from
// where they are added into the shards' while the backward pass of the next unit runs.
class DataParallel : public nn::UnitAccess {
 public:
  // All ranks call it. Mesh and watch outlive it.
  DataParallel(comm::Watch& watch, const comm::Mesh& mesh, const DataParallelOptions& options);

  nn::Shards shards() const { return dense_.shards(); }
  nn::Shards expert_shards() const { return experts_.shards(); }
  int64_t ranks() const { return world_ ? world_->size() : 1; }
  bool sharded() const { return dense_.sharded() || experts_.sharded(); }  // any parameter
  // Points the weights of a model, whose store was made with these shards, at what is gathered.
  void attach(nn::Model& model, nn::ParameterStore& store, const nn::StorageOptions& storage);

  // Of a step, in this order: begin_step, begin_pass and the pass of each micro-batch, finish_gradients, add_up.
  void begin_step();
  void begin_pass(bool last) { last_pass_ = last; }
  void before_forward(int64_t unit) override;
  void before_backward(int64_t unit) override;
  void after_backward(int64_t unit) override;
  void finish_gradients();  // those of the store's units are complete from here on
  // numbers: fp64 [2] on the device, this rank's sum of losses over its `labels` valid labels and the sum of its squared gradients; become
  // those of all ranks.
  void add_up(at::Tensor& numbers, int64_t labels);
  const at::Tensor& rank_losses() const { return rank_losses_; }  // of it: each rank's mean loss, fp64 [ranks] on the device
  void sum(at::Tensor& numbers);                                  // become those of all processes
  void largest(at::Tensor& numbers);                              // become the largest of all shards'
  std::string text() const;                                       // for the log: what is shared out, and how

 private:
  struct Group;
  // The processes that share the same parameters out. Null: this one alone.
  struct Domain {
    std::unique_ptr<comm::Communicator> gathers, reductions;
    bool sharded() const { return gathers != nullptr; }
    nn::Shards shards() const { return sharded() ? nn::Shards{gathers->size(), gathers->index()} : nn::Shards{}; }
  };
  struct Slot {
    at::Tensor weights, gradients;                    // flat, with uneven parameters' places in a gather or reduction behind the others
    at::Tensor part;                                  // what a reduction brings to be added or widened; made for the first one
    at::Tensor rounded;                               // gradients as they travel, where that is not in float32
    Group *holds = nullptr, *gradients_of = nullptr;  // whose weights are there, or on their way; whose gradients
  };
  struct Reduction {
    comm::Pending pending;
    at::Tensor part;  // fp32 or bf16, flat: what this rank gets; undefined where that is the store's gradient itself
  };
  // Units of the store that are gathered and reduced as one.
  struct Group {
    const Domain* domain = nullptr;
    std::vector<nn::ParameterStore::Unit*> units;
    std::vector<nn::Parameter*> parameters;  // with gathered weights or gradients
    Slot* slot = nullptr;
    std::vector<at::Tensor> whole, parts;  // of the gather
    // Of parameters whose rows do not fill all shards: what is gathered or reduced, [rows of all shards], and the rows that there are.
    std::vector<std::pair<at::Tensor, at::Tensor>> uneven_weights, uneven_gradients;
    std::vector<at::Tensor> codes, own_codes;  // likewise of stored weights, which stay gathered until they change
    bool codes_are_old = true;
    std::vector<at::Tensor> full_gradients, gradients;  // of the reduction; the latter are views of the store's
    bool begun = false, reduced = false;                // in this step
    bool last = false;                                  // the reduction that is under way is the step's last
    std::optional<comm::Pending> gather;
    std::vector<Reduction> reductions;
    std::vector<Reduction> sums;  // over replicas, of each unit
  };
  const std::vector<Group*>& groups_of(int64_t unit) const {
    return tied_ && unit == head_ ? places_.front() : places_[static_cast<size_t>(unit)];
  }
  void assign_slots(const nn::StorageOptions& storage);
  void bind(Group& group, const nn::StorageOptions& storage);
  void gather(Group& group);
  void await(Group& group);
  void gather_unit(int64_t unit, int64_t next);  // and begins with those of the next one
  void begin_gradients(Group& group);
  void reduce(Group& group);
  void add_over_replicas(Group& group);
  void settle(Group& group);
  void weights_changed();  // what is gathered is old

  DataParallelOptions options_;
  Domain dense_, experts_;
  std::unique_ptr<comm::Communicator> replicas_, world_;  // null where they would join one rank
  bool first_replica_ = true;
  int64_t head_ = 0;   // its place; the embedding's is 0
  bool tied_ = false;  // the head reads the embedding's weights, which are in one group
  std::deque<Group> groups_;
  std::vector<std::vector<Group*>> places_;  // of each unit's place; empty where another stage of a pipeline has it
  std::vector<std::unique_ptr<Slot>> slots_;
  bool last_pass_ = false;
  at::Tensor rank_losses_;
};

}  // namespace halftone::parallel
