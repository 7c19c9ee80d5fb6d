#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/nn/module.h"
#include "halftone/ops/optimizer.h"

namespace halftone::nn {

// Processes that share every parameter of a kind out, and which of them this is.
struct Shards {
  int64_t count = 1, index = 0;
};

// Equal shares of whole row blocks: the last ones may be smaller, or empty. Experts are cut where there are more processes than experts.
RowShard share_of(const Parameter& p, const Shards& shards);

// Parameters start on a 64-byte boundary of every buffer, whatever its element size: a place is so many elements long.
constexpr int64_t padded(int64_t elements) { return (elements + 31) / 32 * 32; }

struct StorageOptions {
  at::Device device = at::kCPU;
  at::ScalarType storage = at::kFloat;     // training.dtype
  at::ScalarType compute = at::kBFloat16;  // training.mixed_precision_param
  bool trainable = true;                   // false: no gradients (generation, evaluation)
  Shards shards, expert_shards;            // of the parameters without and with Parameter::expert

  const Shards& shards_of(const Parameter& p) const { return p.expert ? expert_shards : shards; }
  std::function<bool(const Parameter&)> wanted{};  // which of the parameters this process has; null: all
  bool wants(const Parameter& p) const { return p.numel() > 0 && (!wanted || wanted(p)); }
};

// Whether ops read the parameter in a copy in the compute dtype. Quantisers take the master and round it for themselves.
bool has_compute_copy(const Parameter& p, at::ScalarType storage, at::ScalarType compute);

// Storage of a model's parameters: one flat buffer per unit (embedding, every block, final norm with head), parameters in
// registration order, for masters, gradients and compute copies alike; sharding, the optimizer and collectives work on
// units. Weights that are stored as codes form units of their own ("layers.3.stored") with gradients but without masters, and those of
// which products read nothing but quantised copies others ("layers.3.quantized") without compute copies.
// Where processes share parameters out (Parameter::shard), all this is of this one's shards, each in the room of the largest; whoever
// gathers them (parallel/data_parallel.h) points `weight` at what it gathers.
class ParameterStore {
 public:
  struct Unit {
    std::string name;  // "tok_embeddings", "layers.3", "norm"
    FlatParameters flat;
    std::unique_ptr<GradientBuffer> gradients;  // of flat.grad
    std::vector<Parameter*> parameters;
  };

  // Allocates and points every parameter's `master` and `weight` into the buffers; contents are undefined until
  // initialize() or a checkpoint fills them.
  void materialize(Module& model, const StorageOptions& options);
  // What that will take at least, from shapes alone.
  static int64_t least_bytes(Module& model, const StorageOptions& options);
  static int64_t least_numel(Module& model, const StorageOptions& options);
  // Counter-based initial values: the same on every device, mesh and thread count.
  void initialize(uint64_t seed);
  static void initialize(Parameter& p, uint64_t seed);  // one of them; masters_changed() follows
  // After masters changed: compute copies follow and packed weights are rebuilt on next use.
  void masters_changed();
  void bump_versions();
  // As after a step of the optimizer that leaves them; gives their memory back.
  void gradients_are_stale(bool release = true);
  void gradients_are_written();  // all, by a graph's replay
  void complete_gradients();     // zeros where nothing was written since

  std::function<void()> on_change;  // weights have changed, by an optimizer or a checkpoint

  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int64_t numel() const;  // of the model, whatever this process holds of it

 private:
  static void materialize(Unit& unit, const StorageOptions& options);
  std::vector<Unit> units_;
  std::vector<Parameter*> parameters_;
};

}  // namespace halftone::nn
